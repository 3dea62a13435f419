"""EC2 on loopback: moto's server, and before it a proxy that keeps the promises which moto does not: client tokens,
and errors of capacity, quota, throttling and credentials; and that loses calls and answers. Not a part of the product.
moto takes 2 s of CPU time to import: that is left to who starts the double, since each process collects all tests.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode
from urllib.request import Request, urlopen

import pytest

REGION = "us-west-2"
IMAGE = "ami-12c6146b"
ACCOUNT = "123456789012"
ACTIONS = {"RunInstances": "create"}
ERRORS = {
    "capacity": (500, "InsufficientInstanceCapacity", "We currently do not have sufficient c5.xlarge capacity"),
    "quota": (400, "VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit"),
    "throttled": (503, "RequestLimitExceeded", "Request limit exceeded."),
    "expired": (400, "RequestExpired", "Request has expired."),
    "denied": (403, "UnauthorizedOperation", "You are not authorized to perform this operation."),
    "wrong": (401, "AuthFailure", "AWS was not able to validate the provided access credentials"),
    "type": (400, "Unsupported", "Your requested instance type is not supported in your requested zone"),
    "unavailable": (503, "Unavailable", "The service is unavailable. Please try again shortly."),
}
"""What EC2 says, by what is tried."""
KNOWN = {
    "InstanceType": (
        ("c5.xlarge", "c5a.xlarge"), "InvalidParameterValue", "Invalid value '{}' for InstanceType."
    ),
    "ImageId": ((IMAGE,), "InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "Placement.AvailabilityZone": (
        [REGION + zone for zone in "ab"], "InvalidParameterValue", "Invalid availability zone: [{}]"
    ),
}  # fmt: skip
"""What there is; moto takes anything."""


class EC2:
    """The double. `fault(action)` says what happens to a call: one of ERRORS, `before` and `after` (the connection ends
    before or after it was carried out), `rubbish`, `hang` (it is carried out, and not answered), `echo` (an error that
    repeats who asks), or nothing. `calls`: the parameters of all calls."""

    def __init__(self) -> None:
        from moto.ec2.models import ec2_backends
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.backends = ec2_backends
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        self.behind = "http://{}:{}".format(*self.moto.get_host_and_port())
        self.fault: Callable[[str], str] = lambda _: ""
        self.calls: list[dict[str, str]] = []
        self.hidden: set[str] = set()
        """Instances that the lists do not show yet."""
        self.page = 0
        """Instances of a page of a list; 0: as moto does."""
        self.tokens: dict[str, tuple[dict[str, str], bytes]] = {}
        self.lock = threading.RLock()
        self.over = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                double.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def backend(self) -> Any:
        return self.backends[ACCOUNT][REGION]

    def reset(self) -> None:
        self.backend.reset()
        self.fault, self.calls, self.tokens, self.hidden = (lambda _: ""), [], {}, set()
        self.page = 0

    def instances(self) -> dict[str, dict[str, str]]:
        """The tags of the instances that are not terminated, by id."""
        found = (one for each in self.backend.reservations.values() for one in each.instances)
        there = [one for one in found if one.state in ("pending", "running", "stopped", "stopping")]
        return {one.id: {tag["key"]: tag["value"] for tag in one.get_tags()} for one in there}

    def machines(self) -> dict[str, str]:
        """The names of these machines, by id."""
        return {id: tags.get("distributed-grid:machine", "") for id, tags in self.instances().items()}

    def shut_down(self, instance: str) -> None:
        """The instance shuts itself down, and is terminated, since that is its behaviour."""
        self.backend.terminate_instances([instance])

    # --- the proxy ----------------------------------------------------------------------------------------------------

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        body = asked.rfile.read(int(asked.headers["Content-Length"]))
        said = {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        action = said["Action"]
        self.calls.append(said)
        fault = self.fault(action)
        if fault == "before":
            asked.close_connection = True
            return
        if fault == "rubbish":
            self.say(asked, 200, b"<html>a captive portal</html>")
            return
        if fault == "echo":
            self.say(asked, 400, error("InvalidThing", asked.headers["Authorization"]))
            return
        if fault in ERRORS:
            self.say(asked, ERRORS[fault][0], error(*ERRORS[fault][1:]))
            return
        if action == "RunInstances":
            status, found = self.run(said, asked, body)
        else:
            status, found = self.forward(asked, self.by_token(said))
        if fault == "hang":
            self.over.wait(60)
        if fault in ("after", "hang"):
            asked.close_connection = True
            return
        for one in self.hidden if action == "DescribeInstances" else ():
            found = re.sub(
                rb"<item>\s*<reservationId>(?:(?!<reservationId>).)*?%s.*?</item>\s*(?=<item>\s*<reservationId>|</reservationSet>)"
                % one.encode(),
                b"",
                found,
                flags=re.S,
            )  # noqa: E501
        self.say(asked, status, found)

    def run(self, said: dict[str, str], asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """One instance for a token, and no other parameters with it."""
        token = said.get("ClientToken", "")
        with self.lock:
            if token and (known := self.tokens.get(token)) is not None:
                if known[0] != said:
                    what = "The request uses the same client token as a previous, but non-identical request."
                    return 400, error("IdempotentParameterMismatch", what)
                return 200, self.as_it_is(known[1])
            for key, (known_ones, code, text) in KNOWN.items():
                if key in said and said[key] not in known_ones:
                    return 400, error(code, text.format(said[key]))
            status, found = self.forward(asked, body)
            if token and status == 200:
                self.tokens[token] = (said, found)
            return status, found

    def by_token(self, said: dict[str, str]) -> bytes:
        """The call, with the filter that moto does not know as one that it knows."""
        said = dict(said)
        if self.page and said["Action"] == "DescribeInstances":
            said["MaxResults"] = str(self.page)
        for key, name in list(said.items()):
            if name == "client-token":
                value = key.replace(".Name", ".Value.1")
                made = self.tokens.get(said[value], ({}, b""))[1]
                found = re.search(rb"<instanceId>(.*?)</instanceId>", made)
                said[key], said[value] = "instance-id", found[1].decode() if found else "i-0"
        return urlencode(said).encode()

    def as_it_is(self, found: bytes) -> bytes:
        """The answer of an earlier call, with the state that the instance has now."""
        there = any(one.encode() in found for one in self.instances())
        return found if there else found.replace(b"<name>pending</name>", b"<name>terminated</name>")

    def forward(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        headers = {name: asked.headers[name] for name in ("Authorization", "Content-Type", "X-Amz-Date")}
        try:
            with urlopen(Request(self.behind, body, headers), timeout=30) as answer:
                return answer.status, answer.read()
        except OSError as refused:
            return getattr(refused, "code", 500), refused.read() if hasattr(refused, "read") else b""

    def say(self, asked: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        asked.send_response(status)
        asked.send_header("Content-Type", "text/xml")
        asked.send_header("Content-Length", str(len(body)))
        asked.end_headers()
        asked.wfile.write(body)

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.moto.stop()


def error(code: str, text: str) -> bytes:
    said = f"<Response><Errors><Error><Code>{code}</Code><Message>{text}</Message></Error></Errors></Response>"
    return said.encode()


@contextmanager
def ec2() -> Iterator[EC2]:
    pytest.importorskip("moto.server", reason="moto is not installed")
    with pytest.MonkeyPatch.context() as patch:
        # It would make 1,400 images anew at each reset, and asks for none of them: which there are is in KNOWN.
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        double = EC2()
        try:
            yield double
        finally:
            double.close()


def settings(double: EC2, **more: Any) -> dict[str, Any]:
    """As the configuration gives them to the provider."""
    given = {"access_key_id": "${TEST_KEY}", "secret_access_key": "${TEST_SECRET}"}
    return {"region": REGION, "endpoint": double.url, "image": IMAGE, "credentials": given, **more}
