"""Compute Engine on loopback: what its REST API does with instances, operations and the ids of requests, and Google's
endpoint for tokens of service accounts; it loses calls and answers. Not a part of the product.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt

PROJECT = "my-project"
IMAGE = "projects/my-project/global/images/grid"
ACCOUNT = "grid@example.com"
ZONES = {"us-central1-a": "n", "us-central1-b": "s"}
TYPES = {"n2-standard-4": (4, 16384), "n2-standard-2": (2, 8192), "n1-standard-4": (4, 15360)}
AT_ONCE = {
    "throttled": (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    "denied": (403, "forbidden", "Required 'compute.instances.create' permission"),
    "unavailable": (503, "backendError", "Backend Error"),
    "disabled": (403, "accessNotConfigured", "Compute Engine API has not been used in project"),
}
"""What a call is refused with."""
IN_OPERATIONS = {
    "capacity": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources available"),
    "quota": ("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."),
}
"""What an operation fails with."""


class GCE:
    """The double. `fault(action)` says what happens to a call, by its method, and `token` for the endpoint of tokens:
    one of AT_ONCE and IN_OPERATIONS, `before` and `after` (the connection ends before or after it was carried out),
    `rubbish`, `hang` (it is carried out, and not answered), or nothing. `slow`: how often an operation is asked for
    until it is done."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.over = threading.Event()
        self.lock = threading.RLock()
        self.reset()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                double.answer(self)

            do_GET = do_DELETE = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.at = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.at}/compute/v1"
        self.file = folder / "account.json"
        self.file.write_text(json.dumps(self.account()))
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        self.fault: Callable[[str], str] = lambda _: ""
        self.instances: dict[str, dict[str, Any]] = {}
        self.disks: set[str] = set()
        self.operations: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, str] = {}
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.slow, self.page, self.tokens, self.unreachable = 1, 500, 0, ""

    def account(self, key: rsa.RSAPrivateKey | None = None) -> dict[str, str]:
        """A service account's file."""
        pem = (key or self.key).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account", "client_email": ACCOUNT, "private_key": pem.decode(), "private_key_id": "1",
            "token_uri": f"{self.at}/token", "project_id": PROJECT,
        }  # fmt: skip

    def machines(self) -> dict[str, str]:
        """The machines that run or are about to, by handle."""
        alive = ("PROVISIONING", "STAGING", "RUNNING")
        return {
            handle: one.get("labels", {}).get("distributed-grid-machine", "")
            for handle, one in self.instances.items()
            if one["status"] in alive
        }

    def shut_down(self, handle: str) -> None:
        """It powers off, and is then as any instance that is stopped: its disk stays, and its run time is not limited
        any more."""
        self.instances[handle]["status"] = "TERMINATED"

    def ran(self, seconds: float) -> None:
        """Instances have run for so long: those whose maxRunDuration is over are deleted, or stopped."""
        for handle, one in list(self.instances.items()):
            limit, action = (one["scheduling"].get(name) for name in ("maxRunDuration", "instanceTerminationAction"))
            if one["status"] == "RUNNING" and limit is not None and seconds >= limit["seconds"]:
                if action == "DELETE":
                    self.delete(handle)
                else:
                    self.shut_down(handle)

    def delete(self, handle: str) -> bool:
        """Whether there was such an instance; of its disks those stay that are not to be deleted with it."""
        if (one := self.instances.pop(handle, None)) is None:
            return False
        if one["disks"][0].get("autoDelete"):
            self.disks.discard(handle)
        return True

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        body = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        parts = urlsplit(asked.path)
        words = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/token":
            self.token(asked, parse_qs(body.decode())["assertion"][0])
            return
        data = json.loads(body) if body else None
        path = parts.path.removeprefix(f"/compute/v1/projects/{PROJECT}/")
        self.calls.append((asked.command, path, words, data))
        fault = self.fault(asked.command)
        if fault == "before":
            asked.close_connection = True
            return
        if fault == "rubbish":
            self.say(asked, 200, b"<html>a captive portal</html>")
            return
        if asked.headers["Authorization"] != f"Bearer token-{self.tokens}":
            self.say(asked, 401, refusal(401, "authError", "Invalid Credentials"))
            return
        if fault in AT_ONCE:
            self.say(asked, AT_ONCE[fault][0], refusal(*AT_ONCE[fault]))
            return
        with self.lock:
            status, found = self.do(asked.command, path.split("/"), words, data, fault)
        if fault == "hang":
            self.over.wait(60)
        if fault in ("after", "hang"):
            asked.close_connection = True
            return
        self.say(asked, status, found if isinstance(found, bytes) else json.dumps(found).encode())

    def token(self, asked: BaseHTTPRequestHandler, assertion: str) -> None:
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        fault = self.fault("token")
        try:
            claims = jwt.decode(assertion, certs=public)
            right = claims["iss"] == ACCOUNT and not fault
        except ValueError:
            right = False
        if not right:
            said = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            self.say(asked, 400, json.dumps(said).encode())
            return
        self.tokens += 1
        said = {"access_token": f"token-{self.tokens}", "expires_in": 3600, "token_type": "Bearer"}  # type: ignore[dict-item]
        self.say(asked, 200, json.dumps(said).encode())

    def say(self, asked: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        asked.send_response(status)
        asked.send_header("Content-Type", "application/json")
        asked.send_header("Content-Length", str(len(body)))
        asked.end_headers()
        asked.wfile.write(body)

    # --- Compute Engine -----------------------------------------------------------------------------------------------

    def do(self, method: str, path: list[str], words: dict[str, str], data: Any, fault: str) -> tuple[int, Any]:
        match method, path:
            case "GET", ["aggregated", "instances"]:
                return 200, self.list(words)
            case _, ["zones", zone, *_] if zone not in ZONES:
                return 404, refusal(404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}' was not found")
            case "POST", ["zones", zone, "instances"]:
                return self.insert(zone, words, data, fault)
            case "GET", ["zones", zone, "instances", name]:
                found = self.instances.get(f"{zone}/{name}")
                return (200, found) if found else (404, refusal(404, "notFound", f"{name} was not found"))
            case "DELETE", ["zones", zone, "instances", name]:
                if not self.delete(f"{zone}/{name}"):
                    return 404, refusal(404, "notFound", f"{name} was not found")
                return 200, self.operation(zone, name)
            case "GET", ["zones", zone, "operations", name]:
                return 200, self.look(name)
            case "GET", ["zones", zone, "machineTypes", type] if type in TYPES:
                return 200, {"name": type, "guestCpus": TYPES[type][0], "memoryMb": TYPES[type][1]}
            case "GET", ["regions", _]:
                return 200, {"quotas": [{"metric": "CPUS", "limit": 24.0, "usage": 4.0}]}
        return 404, refusal(404, "notFound", "/".join(path))

    def list(self, words: dict[str, str]) -> dict[str, Any]:
        label, _, value = words["filter"].removeprefix("labels.").partition("=")
        found = [one for one in self.instances.values() if one.get("labels", {}).get(label) == value]
        begin, size = int(words.get("pageToken", "0")), min(self.page, int(words["maxResults"]))
        items: dict[str, Any] = {
            f"zones/{zone}": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "nothing"}} for zone in ZONES
        }
        for one in found[begin : begin + size]:
            items[f"zones/{one['zone'].rpartition('/')[2]}"] = {"instances": []}
        for one in found[begin : begin + size]:
            items[f"zones/{one['zone'].rpartition('/')[2]}"]["instances"].append(one)
        if self.unreachable:
            items[self.unreachable] = {"warning": {"code": "UNREACHABLE", "message": "it does not answer"}}
        more = {"nextPageToken": str(begin + size)} if begin + size < len(found) else {}
        return {"items": items, **more}

    def insert(self, zone: str, words: dict[str, str], data: Any, fault: str) -> tuple[int, Any]:
        if (known := self.requests.get(words["requestId"])) is not None:
            return 200, self.look(known)
        handle, type = f"{zone}/{data['name']}", data["machineType"].rpartition("/")[2]
        if type not in TYPES:
            what = f"Invalid value for field 'resource.machineType': '{data['machineType']}'. It does not exist."
            return 400, refusal(400, "invalid", what)
        if data["disks"][0]["initializeParams"]["sourceImage"] != IMAGE:
            return 404, refusal(404, "notFound", "The resource 'projects/my-project/global/images/x' was not found")
        if handle in self.instances:
            return 409, refusal(409, "alreadyExists", f"The resource '{handle}' already exists")
        made = self.operation(zone, data["name"])
        self.requests[words["requestId"]] = made["name"]
        if fault in IN_OPERATIONS:
            code, text = IN_OPERATIONS[fault]
            self.operations[made["name"]]["error"] = {"errors": [{"code": code, "message": text}]}
        else:
            url = f"https://compute.example.com/v1/projects/{PROJECT}/zones/{zone}"
            self.instances[handle] = {**data, "status": "PROVISIONING", "zone": url}
            self.disks.add(handle)
        return 200, made

    def operation(self, zone: str, name: str) -> dict[str, Any]:
        number = f"operation-{len(self.operations)}"
        self.operations[number] = {"name": number, "left": self.slow, "handle": f"{zone}/{name}"}
        return {"name": number, "status": "RUNNING"}

    def look(self, name: str) -> dict[str, Any]:
        one = self.operations[name]
        one["left"] -= 1
        if one["left"] >= 0:
            return {"name": name, "status": "RUNNING"}
        if (instance := self.instances.get(one["handle"])) is not None and instance["status"] == "PROVISIONING":
            instance["status"] = "RUNNING"
        return {"name": name, "status": "DONE"} | ({"error": one["error"]} if "error" in one else {})

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def refusal(status: int, reason: str, text: str) -> bytes:
    said = {"error": {"code": status, "message": text, "errors": [{"reason": reason, "message": text}]}}
    return json.dumps(said).encode()


@contextmanager
def gce(folder: Path) -> Iterator[GCE]:
    double = GCE(folder)
    try:
        yield double
    finally:
        double.close()


def settings(double: GCE, **more: Any) -> dict[str, Any]:
    """As the configuration gives them to the provider."""
    given = {"project": PROJECT, "zone": "us-central1-a", "image": IMAGE, "endpoint": double.url}
    return {**given, "credentials_file": str(double.file), **more}
