"""The format of a trace is told by its content alone."""

import bz2
import gzip
import lzma
import random
import re

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.simulator.lab.formats.tell import read, read_all
from tests.simulator.lab.formats.test_tables import PODS
from tests.simulator.lab.formats.test_unpack import tarred, zipped

SWF = "1 0 -1 10 4 -1 -1 -1 20 -1 1 7 -1 -1 -1 -1 -1 -1\n"
TEXTS = {
    "SWF": f"; MaxProcs: 4\n{SWF}",
    "openb pods": f"{PODS}\na,6000,1024,1,460,,LS,Running,10,110,20\n",
    "openb nodes": "sn,cpu_milli,memory_mib,gpu,model\nn,32000,1024,0,\n",
    "csv of jobs": "submit,duration,cores,user\n0,10,1,ann\n",
    "Nextflow trace": "task_id\tstatus\tsubmit\trealtime\n1\tCOMPLETED\t0\t10s\n",
    "use of a machine": "10\n20\n",
    "use of a machine over time": "Timestamp [ms];\tCPU usage [%]\n100;\t0.5\n",
    "history": '{"schema":1,"jobs":[]}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_format_is_told_by_its_content(name: str) -> None:
    assert read(TEXTS[name].encode(), "x").format == name


def test_rows_of_swf_and_of_csv_need_no_header() -> None:
    assert read(SWF.encode(), "x").format == "SWF" and read(b"0,10,1\n", "x").format == "csv of jobs"


def test_a_byte_order_mark_and_line_ends_of_windows_do_not_matter() -> None:
    trace = read(b"\xef\xbb\xbfsubmit,duration,cores\r\n0,10,1\r\n", "x")
    assert len(trace.jobs) == 1 and not trace.left_out


@pytest.mark.parametrize("text", ["hello world\n", "a,b\n1,2\n"])
def test_an_unknown_format_is_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(BadValue, match="no trace that is known") as told:
        read(text.encode(), "x")
    assert "SWF" in told.value.hint


def test_an_empty_file_is_an_error() -> None:
    with pytest.raises(BadValue, match="x is empty"):
        read(b"\n\n", "x")


def test_a_tar_of_numbers_is_the_use_of_several_machines() -> None:
    trace = read_all(lzma.compress(tarred({"b": "5\n", "a": "7\n"})), "x")
    assert [one.name for one in trace.use] == ["a", "b"] and trace.rows == 2


def test_a_tar_of_jobs_is_refused() -> None:
    with pytest.raises(BadValue, match="holds several files"):
        read_all(tarred({"a": SWF, "b": SWF}), "x")


MANGLED = (
    b"-1",
    b"nan",
    b"9" * 5000,
    b"x" * 140_000,
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"{",
    b"[" * 9999,
    b"\r",
    b"[1]",
)
PACK = (bytes, gzip.compress, lzma.compress, bz2.compress, lambda data: zipped(["a"], data.decode(errors="replace")))


@pytest.mark.parametrize("seed", range(25))
def test_a_mangled_file_is_taken_in_part_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for text in TEXTS.values():
        data, pack = bytearray(text.encode()), chance.choice(PACK)
        begin, end = chance.choice([found.span() for found in re.finditer(rb"[^\s,;:]+", data)])
        data[begin:end] = chance.choice(MANGLED)
        data = bytearray(pack(bytes(data)))
        if chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        cut = chance.randrange(len(data)) if chance.random() < 0.3 else len(data)
        try:
            trace = read_all(bytes(data[:cut]), "x")
        except BadValue as told:
            assert told.what.startswith(("x ", "nothing in x", "this is no", "the header says")), told.what
        else:
            left_out = sum(one.count for one in trace.left_out.values())
            many = len(trace.jobs) or (0 if trace.format == "SWF" else len(trace.machines))
            assert trace.use or many + left_out == trace.rows, trace.words()
