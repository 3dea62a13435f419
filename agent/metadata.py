"""The metadata service of a cloud: it gives the machine's name there, and says when the provider takes the machine
back. The services are found as by the vendors' own tools, also by their environment variables
(AWS_EC2_METADATA_SERVICE_ENDPOINT, GCE_METADATA_HOST)."""

import datetime
import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from distributed_grid.runtime.logs import get_logger

TIMEOUT = 1.0
ANSWER_MOST = 4096
TOKEN_SECONDS = 21_600
AWS_NOTICE, GCP_NOTICE, GCP_MAINTENANCE = 120.0, 30.0, 60.0
"""Maximum time between a notice and the end of the machine (s); EC2 says in the notice when that is."""
_HANDLE = re.compile(r"^i-[0-9a-f]{1,40}$")

log = get_logger("machine")


class Notice(NamedTuple):
    """The machine is taken back in `seconds`; None: it is more likely than others to be taken back."""

    seconds: float | None
    why: str


class Metadata:
    """The metadata service of `aws` or `gcp`. Questions take a few seconds at most, and change nothing."""

    def __init__(self, vendor: str, environment: Mapping[str, str] = os.environ) -> None:
        self._vendor = vendor
        if vendor == "aws":
            said = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
            self._host = urlsplit(said).netloc
        else:
            self._host = environment.get("GCE_METADATA_HOST") or "169.254.169.254"
        self._token = ""
        self._silent = False

    def handle(self) -> str:
        """The id of this machine at EC2; empty: unknown."""
        found = self._aws("instance-id") if self._vendor == "aws" else ""
        return found if found and _HANDLE.match(found) else ""

    def notice(self, now: float) -> Notice | None:
        """The notice to this machine, if there is one. `now`: seconds since the epoch."""
        return self._aws_notice(now) if self._vendor == "aws" else self._gcp_notice()

    def _aws_notice(self, now: float) -> Notice | None:
        if said := self._aws("spot/instance-action"):
            try:
                action = json.loads(said)
                at = datetime.datetime.fromisoformat(str(action["time"]))
                at = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
                left = min(AWS_NOTICE, max(0.0, at.timestamp() - now))
                return Notice(left, f"EC2 takes it back ({str(action['action'])[:20]})")
            except (ValueError, KeyError, TypeError, OverflowError):
                log.warning("a notice of the metadata service cannot be read", said=said[:200])
        if self._aws("events/recommendations/rebalance"):
            return Notice(None, "EC2 says that it is likely to be taken back")
        return None

    def _gcp_notice(self) -> Notice | None:
        if (self._gcp("preempted") or "").upper() == "TRUE":
            return Notice(GCP_NOTICE, "Compute Engine takes it back")
        if self._gcp("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice(GCP_MAINTENANCE, "Compute Engine ends it for maintenance")
        return None

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _aws(self, path: str) -> str | None:
        """Return the text at this path, by IMDSv2, with a token that is renewed when it is refused. None: there is no
        text, or no answer."""
        for _ in range(2):
            if not self._token:
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                status, token = self._ask("PUT", "/latest/api/token", ttl)
                if status != 200 or not re.fullmatch(r"[\x21-\x7e]+", token):
                    return None
                self._token = token
            status, said = self._ask("GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            if status != 401:
                return said if status == 200 else None
            self._token = ""
        return None

    def _gcp(self, path: str) -> str | None:
        status, said = self._ask("GET", f"/computeMetadata/v1/instance/{path}", {"Metadata-Flavor": "Google"})
        return said if status == 200 else None

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Status (0: no answer) and text. No proxy is asked."""
        import http.client  # only machines of clouds ask

        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            said = answer.read(ANSWER_MOST).decode("ascii", "replace").strip()
            self._silent = False
            return answer.status, said
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._silent:
                log.warning("the metadata service does not answer", at=self._host, why=str(error)[:200])
            self._silent = True
            return 0, ""
        finally:
            connection.close()
