"""The template and the JSON schema say what the reader accepts."""

import json
import re
from pathlib import Path

from distributed_grid.config import render as config_text
from tests.config.conftest import Write, read


def test_the_file_that_init_writes_is_read_and_changes_nothing(written: Write) -> None:
    blank, first = read(None, here=Path("/none")), read(written(config_text.template()))
    assert [(row.name, row.value) for row in first.rows()] == [(row.name, row.value) for row in blank.rows()]
    assert first.warnings == ()


def test_every_setting_that_init_shows_as_a_comment_can_be_uncommented(written: Write) -> None:
    lines = [re.sub(r"^( *)# ", r"\1", line) for line in config_text.template().splitlines()[3:]]
    config = read(written("\n".join(line for line in lines if "Settings of" not in line)))
    assert [node.name for node in config.nodes] == ["gpu-master"]
    assert [(pool.name, pool.provider) for pool in config.pools] == [("burst", "process")]


def test_the_json_schema_knows_every_name_the_reader_accepts() -> None:
    schema = json.loads(json.dumps(config_text.json_schema()))
    sharing = schema["properties"]["resource_sharing"]["properties"]
    assert schema["properties"]["execution"]["properties"]["resource_sharing"]["properties"] == sharing
    assert schema["properties"]["aws"] == schema["properties"]["providers"]["properties"]["aws"]
    assert sharing["policy"]["enum"] == ["conservative", "balanced", "aggressive", "predictive"]
    assert sharing["pressure_thresholds"]["properties"]["cpu"]["properties"]["high"]["maximum"] == 1
    assert schema["properties"]["nodes"]["items"]["required"] == ["name"]
    assert not schema["additionalProperties"]
