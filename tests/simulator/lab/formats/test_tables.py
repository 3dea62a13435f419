"""Tables of jobs and machines: openb, csv and Nextflow."""

import pytest

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import GIB, MIB, Resources
from distributed_grid.simulator.lab.formats import tables
from distributed_grid.simulator.lab.trace import UNKNOWN, Machine, Trace

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


def pods(*rows: str) -> Trace:
    return tables.read_pods(numbered("\n".join([PODS, *rows])))


def test_a_pod_has_parts_of_one_gpu_or_whole_ones() -> None:
    trace = pods(
        "a,6000,1024,1,460,,LS,Running,10,110,20",
        "b,8000,1024,2,1000,V100|T4,BE,Running,10,110,10",
        "c,500,512,0,0,T4,BE,Running,0,50,0",
    )
    assert [job.resources.gpu for job in trace.jobs] == [0, 460, 2000]
    assert trace.jobs[1].resources == Resources(6000, 1024 * MIB, 460)
    assert (trace.jobs[1].submit, trace.jobs[1].duration, trace.jobs[1].user) == (10.0, 90.0, "LS")
    assert [job.gpu_model for job in trace.jobs] == ["", "", "V100|T4"]


def test_pods_without_times_are_for_workloads_of_arrivals() -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,6000,1024,1,460"
    trace = tables.read_pods(numbered(text))
    assert [(job.submit, job.duration, job.user) for job in trace.jobs] == [(0.0, UNKNOWN, "")]


def test_a_pod_without_an_end_has_an_unknown_duration() -> None:
    trace = pods("a,6000,1024,1,460,,LS,Pending,10,,", "b,6000,1024,1,460,,LS,Failed,10,20,30")
    assert [job.duration for job in trace.jobs] == [UNKNOWN, UNKNOWN]


def test_a_bad_pod_is_left_out_with_its_line() -> None:
    trace = pods("a,lots,1024,1,460,,LS,Running,10,110,20", "b,1,2", "c,500,512,0,0,,BE,Running,0,50,0")
    assert trace.words()[:3] == [
        "openb pods: 1 of 3 rows taken",
        "1 row left out, line 2: cpu_milli is not a number: 'lots'",
        "1 row left out, line 3: it has 3 fields of 11",
    ]


def test_nodes_of_openb_become_machines() -> None:
    trace = tables.read_nodes(
        numbered("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,0,\nn1,96000,2048,8,T4\nn2,1,1,0,")
    )
    assert trace.machines == [Machine("n0", 32, GIB), Machine("n1", 96, 2 * GIB, 8, "T4")]
    assert trace.words()[1] == "1 row left out, line 4: cpu_milli is below 1000: 1"


def test_a_csv_of_jobs_is_read_by_the_names_of_its_columns() -> None:
    text = "user;submit;runtime;cpus;mem;gpus;time_limit;priority\nann;5;1h;2;4G;0.5;7200;high\nbob;0;90;1;;;;\n"
    bob, ann = tables.read_jobs(numbered(text), ";").jobs
    assert (ann.submit, ann.duration, ann.requested, ann.user, ann.priority) == (
        5.0,
        3600.0,
        7200.0,
        "ann",
        Priority.HIGH,
    )
    assert ann.resources == Resources(2000, 4 * GIB, 500) and bob.resources == Resources(1000)
    assert bob.requested == 0.0


def test_a_csv_without_a_header_has_submit_duration_cores_and_user() -> None:
    trace = tables.read_jobs(numbered("0,10,4,ann\n1,5,0.5,bob"), ",")
    assert [(job.duration, job.resources.cpu, job.user) for job in trace.jobs] == [
        (10.0, 4000, "ann"),
        (5.0, 500, "bob"),
    ]
    assert [job.line for job in trace.jobs] == [1, 2]


def test_submit_times_may_be_dates() -> None:
    text = "submit,duration,cores\n2026-01-01T00:00:10,1,1\n2026-01-01T01:00:00+01:00,1,1"
    assert [job.submit for job in tables.read_jobs(numbered(text), ",").jobs] == [0.0, 10.0]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("soon,1,1", "the submit time is not a number: 'soon'"),
        ("0,-1,1", "the duration is below 0: -1"),
        ("0,0,1", "it did not run: its duration is 0"),
        ("0,long,1", "the duration is not a duration: 'long'"),
        ("0,1,0", "it asks for nothing"),
        ("0,1,nan", "the number of cores is out of range: nan"),
        ("0,1", "it has 2 fields of 3"),
    ],
)
def test_a_bad_row_of_a_csv_says_what_is_wrong(row: str, why: str) -> None:
    trace = tables.read_jobs(numbered(f"submit,duration,cores\n{row}\n0,1,1"), ",")
    assert (list(trace.left_out), len(trace.jobs)) == ([why], 1)


def test_a_trace_of_nextflow_has_spans_sizes_and_processes() -> None:
    text = (
        "task_id\tname\tprocess\tstatus\tsubmit\trealtime\t%cpu\tpeak_rss\tcpus\tmemory\ttime\n"
        "1\tFASTQC (a)\tFASTQC\tCOMPLETED\t2023-03-01 10:00:05.500\t1m 30s\t180%\t1.2 GB\t2\t6 GB\t1h\n"
        "2\tALIGN (a)\t-\tCOMPLETED\t2023-03-01 10:00:00.000\t350ms\t180%\t1 GB\t-\t-\t-\n"
        "3\tALIGN (b)\t-\tCACHED\t2023-03-01 10:00:00.000\t350ms\t180%\t1 GB\t-\t-\t-\n"
    )
    trace = tables.read_nextflow(numbered(text), "\t")
    second, first = trace.jobs
    assert (first.submit, first.duration, first.requested, first.user) == (5.5, 90.0, 3600.0, "FASTQC")
    assert first.resources == Resources(2000, 6 * GIB)
    assert (second.duration, second.resources, second.user) == (0.35, Resources(2000, GIB), "ALIGN")
    assert trace.words()[1] == "1 row left out, line 4: its status is CACHED"


def test_a_raw_trace_of_nextflow_has_milliseconds() -> None:
    text = "task_id\tstatus\tsubmit\trealtime\n1\tCOMPLETED\t1677664800000\t90000\n2\tCOMPLETED\t1677664810000\t1\n"
    trace = tables.read_nextflow(numbered(text), "\t")
    first, second = trace.jobs
    assert (first.duration, second.submit) == (90.0, 10.0)
    assert trace.assumed == ["there are no requested times: the jobs have no time limit"]


@pytest.mark.parametrize("field", ["1\r2", "x" * 140_000], ids=["line end", "long"])
def test_a_line_that_no_table_has_is_left_out(field: str) -> None:
    lines = [(1, "submit,duration,cores"), (2, f"0,{field},1"), (3, "0,1,1")]
    trace = tables.read_jobs(lines, ",")
    why = "it is no line of a table: a field has a line end in it, or is very long"
    assert ([(one.why, one.lines) for one in trace.left_out.values()], len(trace.jobs)) == ([(why, [2])], 1)


def test_a_node_that_is_there_twice_counts_once() -> None:
    rows = ("n0,4000,1,0", "n1,4000,1,0", "n0,8000,1,0")
    trace = tables.read_nodes(numbered("\n".join(("sn,cpu_milli,memory_mib,gpu", *rows))))
    assert [(one.name, one.cores) for one in trace.machines] == [("n0", 4), ("n1", 4)]
    assert trace.words()[1] == "1 row left out, line 4: the node n0 is there twice"


@pytest.mark.parametrize(
    ("row", "what"), [("1e12,1,0", "cpu_milli"), ("1000,1e14,0", "memory_mib"), ("1000,1,1e9", "gpu")]
)
def test_a_machine_that_nobody_could_build_is_left_out(row: str, what: str) -> None:
    trace = tables.read_nodes(numbered(f"sn,cpu_milli,memory_mib,gpu\nn0,{row}\nn1,1000,1,0"))
    assert len(trace.machines) == 1 and trace.words()[1].startswith(f"1 row left out, line 2: {what} is out of range")
