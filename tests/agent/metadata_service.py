"""The metadata services of EC2 (IMDSv2 only) and Compute Engine on loopback: what an instance may ask about itself. Not
a part of the product.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetadataService:
    """`says`: answers by path, others are 404. `tokens`: how many were given; only the last one is good. `status` other
    than 0: that of all answers."""

    def __init__(self) -> None:
        self.says: dict[str, str] = {}
        self.tokens = self.status = 0
        self.asked: list[str] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                if self.path != "/latest/api/token" or not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                    self.say(400, "")
                    return
                double.tokens += 1
                self.say(double.status or 200, f"token-{double.tokens}")

            def do_GET(self) -> None:
                double.asked.append(self.path)
                if self.path.startswith("/computeMetadata/"):
                    allowed = self.headers["Metadata-Flavor"] == "Google"
                else:
                    allowed = self.headers["X-aws-ec2-metadata-token"] == f"token-{double.tokens}"
                said = double.says.get(self.path)
                status = double.status or (401 if not allowed else 404 if said is None else 200)
                self.say(status, said or "" if allowed else "Unauthorized")

            def say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{self.host}", "GCE_METADATA_HOST": self.host}


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    double = MetadataService()
    try:
        yield double
    finally:
        double.server.shutdown()
        double.server.server_close()
