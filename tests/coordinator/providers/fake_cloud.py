"""A user's programs for `CommandProvider`: machines are files in a folder. Run as
`fake_cloud.py FOLDER create|list|end`. `FOLDER/does` may say `hang`, `wait` (a creation, for `FOLDER/go`), `rubbish`,
`silent`, `long`, `fail`, or the kind of an error."""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    asked = json.load(sys.stdin)
    says = (folder / "does").read_text().strip() if (folder / "does").exists() else ""
    if says == "hang":
        (folder / "hangs").touch()
        time.sleep(600)
    if says == "wait":
        (folder / "waits").open("a").write(f"{what}\n")
        while what == "create" and not (folder / "go").exists():
            time.sleep(0.02)
        says = ""
    if says == "rubbish":
        print("<html>")
        return
    if says == "silent":
        return
    if says == "long":
        print(json.dumps({"handle": "x" * 2000}))
        return
    if says == "fail":
        sys.exit("no route to the hypervisor")
    if says:
        print(json.dumps({"error": says, "text": f"it says {says}"}))
        return
    (folder / f"told-{what}").write_text(json.dumps(asked, sort_keys=True))
    there = folder / asked["grid"]
    there.mkdir(exist_ok=True)
    match what:
        case "create":
            path = there / asked["name"]
            if not path.exists():
                path.write_text(
                    json.dumps({"handle": f"vm-{asked['name']}", "name": asked["name"], "pool": asked["pool"]})
                )
            print(json.dumps({"handle": f"vm-{asked['name']}"}))
        case "end":
            path = there / asked["name"]
            print(json.dumps({"there": path.exists()}))
            path.unlink(missing_ok=True)
        case "list":
            print(json.dumps({"machines": [json.loads(one.read_text()) for one in sorted(there.iterdir())]}))


if __name__ == "__main__":
    main()
