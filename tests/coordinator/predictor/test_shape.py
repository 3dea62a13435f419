import time
from pathlib import Path
from random import Random

import pytest

from distributed_grid.coordinator.predictor.database import UsageDatabase, UsageRow
from distributed_grid.coordinator.predictor.shape import FEATURES, shape
from distributed_grid.protocol.messages.needs import excerpt


def text(*argv: str) -> str:
    return shape(argv).text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("/usr/bin/python3.11", "train.py", "--lr", "0.1"), "python train.py --lr #"),
        (("python3", "-u", "/usr/share/train.py", "--epochs=50"), "python train.py -u --epochs=#"),
        (("python", "-m", "grid.train", "data/part-0017.csv"), "python grid.train *.csv"),
        (("blastn", "-query", "/usr/share/b.fasta", "-num_threads", "8"), "blastn -query *.fasta -num_threads #"),
        (("sort", "-S", "2G", "input"), "sort -S # input"),
        (("java", "-Xmx4g", "-jar", "tool.jar", "-rf", "-j16"), "java -X* -jar *.jar -rf -j#"),
        (("env", "TOKEN=abc", "nice", "-n", "5", "gzip", "big.tar"), "gzip *.tar"),
        (("sh", "-c", "samtools sort -m 4G x.bam | head"), "samtools sort -m # *.bam * head"),
        (("fetch", "--commit", "9fceb02d0ae598e95dc970b74767f19372d61af8"), "fetch --commit ~"),
        (("run", "--api-token", "hunter", "--password=x"), "run --api-token * --password=*"),
        (("map", "sample12", "ERR260271"), "map sample# ERR#"),
        (("python", "-c", "print(1)", "7"), "python -c:5b8f9127 #"),
        ((), "?"),
    ],
)
def test_a_shape_is_what_runs_of_a_command_have_in_common(argv: tuple[str, ...], expected: str) -> None:
    assert shape(argv).text == expected


def test_runs_with_other_numbers_paths_and_hashes_have_one_shape_and_other_words_another() -> None:
    one = shape(["python", "train.py", "--lr", "0.1", "a/1.csv"], "ann")
    same = shape(["python3", "/x/train.py", "--lr", "3e-4", "/b/22.csv"], "ann")
    other = shape(["python", "train.py", "--rate", "0.1", "a/1.csv"], "ann")
    assert (one.key, one.program_key) == (same.key, same.program_key)
    assert other.key != one.key and other.program_key == one.program_key


def test_users_and_arrays_have_shapes_of_their_own() -> None:
    ann, bob, array = (shape(["x"], *more) for more in (("ann",), ("bob",), ("ann", 0, True)))
    assert len({ann.key, bob.key, array.key}) == 3
    assert ann.program_key == array.program_key != bob.program_key
    assert ann.user_key == array.user_key != bob.user_key


def test_the_numbers_are_features_after_the_size_and_what_was_given_by_name() -> None:
    found = shape(["train", "--epochs", "50", "-S", "2k", "7", "--rows=3", "9"], size=1000, given={"batch": 64})
    assert found.features == (("size", 1000.0), ("batch", 64.0), ("epochs", 50.0), ("S", 2000.0))
    assert len(found.xs) == FEATURES


def test_of_the_features_by_name_the_first_three_count_in_whatever_order_they_are_given() -> None:
    many = {"batch_size": 64.0, "alpha": 1.0, "beta": 2.0, "a": 3.0}
    found = shape(["train"], given=many)
    assert [name for name, _ in found.features] == ["size", "alpha", "batch_size", "beta"]
    turned = {"beta": 2.0, "batch_size": 64.0, "alpha": 1.0}
    assert shape(["train"], given=turned) == found


def test_the_longest_shape_that_there_is_can_be_read_again(tmp_path: Path) -> None:
    names = {f"{'é' * 1000}{number}": 1e15 / 3 for number in range(3)} | {
        f"{number}{'é' * 1000}": 0.1 for number in range(3)
    }
    of = shape(["\U0001f600" * 200, *["é" * 200] * 60], "ann" * 80, 1 << 60, True, names)
    database = UsageDatabase(tmp_path / "usage.db")
    row = UsageRow(
        "j-1.1", 1.0, "ann" * 80, *of[:6], 1, 1, 1, 1e15, 1 << 60, 0.1, 0, 1 << 60, "out of memory", "exited"
    )
    database.write([row])
    assert database.newest(1) == [row]


def test_an_excerpt_of_a_command_has_its_shape() -> None:
    code = "print(1)\n" * 40_000
    for argv in (["python", "-c", code, "7"], ["sh", "-c", "train 4 # " + "x" * 40_000], ["p", *["w"] * 900]):
        assert shape(excerpt(argv), "ann") == shape(argv, "ann")
        assert sum(map(len, excerpt(argv))) < 48 * 20_001


def test_a_number_that_is_none_is_left_out() -> None:
    found = shape(["x", "1e999", "7"], given={"nan": float("nan"), "inf": float("inf")})
    assert found.features == (("size", 0.0), ("argument-2", 7.0))


def test_values_of_the_environment_and_secrets_are_in_no_shape() -> None:
    argv = ["env", "SECRET=hunter2", "deploy", "--token", "hunter2", "--key=hunter2", "https://ann:hunter2@host/x"]
    assert "hunter" not in repr(shape(argv, "ann"))
    for glued in ("-phunter2", "-phunter", "-Phunter", "-uHunter", "-khunter2", "-Dhunter.x", "-p=hunter"):
        assert "hunter" not in repr(shape(["tool", glued, "7", "x.csv"], "ann")).lower(), glued


def test_what_somebody_sends_to_hurt_is_bounded_and_quick() -> None:
    chance = Random(1)
    hostile = [
        ["sh", "-c", "'" * 100_000],
        ["x" * 1_000_000, *["-" * 1000] * 10_000],
        ["python", *["\udcff" * 300] * 500],
        *[["".join(chr(chance.randrange(1, 3000)) for _ in range(50)) for _ in range(60)] for _ in range(20)],
        ["0" * 100_000 + "x", "a0" * 50_000, "." * 100_000],
    ]
    began = time.process_time()
    for argv in hostile:
        found = shape(argv, "ann")
        assert len(found.text) <= 200 and len(found.features) <= FEATURES
    assert time.process_time() - began < 1.0
