"""The report of a run: parts, and figures beside their limits, as Markdown.

Invariant: a figure of a rehearsal says so in the head of its column and is compared with nothing. Where there is no
figure for a limit, there is a dash and no ratio. A part that did not run is as red as one that failed, unless it may be
left out. Absent: running anything.
"""

import fnmatch
import statistics

AIM_OF_STREAMING = 0.85
AIM_OF_LATENCY_US = 5.0
WHAT = {"gpu": "GPU", "standin": "stand-in, times mean nothing", "host": "ordinary memory, times mean nothing"}
TITLES = {
    "gpu": "# What a GPU showed",
    "standin": "# Rehearsal on the stand-in for a driver and a GPU: no GPU was used, and times mean nothing",
    "host": "# Rehearsal on ordinary memory: no driver and no GPU was used, and times mean nothing",
}


def mark(part, may_skip):
    """A part's outcome, in capitals where it shows less than it should."""
    if part["outcome"] == "skipped":
        return "skipped" if any(fnmatch.fnmatchcase(part["part"], name) for name in may_skip) else "SKIPPED"
    # Found in results only where the run itself was ended.
    return {"running": "CUT"}.get(part["outcome"], part["outcome"])


def merged(runs, expected=()):
    """One result of several: each part as the last run that did not skip it has it. Expected parts that no run has are
    skipped."""
    if len({run["kind"] for run in runs}) != 1:
        raise SystemExit("runs on a GPU and rehearsals are not merged")
    parts = {}
    for run in runs:
        for part in run["parts"]:
            if part["part"] not in parts or part["outcome"] != "skipped":
                parts[part["part"]] = part
    empty = {"about": "", "outcome": "skipped", "reason": "in none of the runs", "seconds": 0, "records": [], "notes": [], "log": ""}
    missing = [{"part": name, **empty} for name in expected if name not in parts]
    return {
        **runs[-1],
        "parts": [*parts.values(), *missing],
        "date": " and ".join(dict.fromkeys(run["date"] for run in runs)),
        "seed": ", ".join(dict.fromkeys(str(run["seed"]) for run in runs)),
        "may_skip": sorted({name for run in runs for name in run.get("may_skip", [])}),
    }


def table(heads, rows):
    """Right-aligned but for the first column."""
    if not rows:
        return []
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows] + [""]


def of_bytes(number):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << shift and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return f"{number} B"


def us(value):
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


class Figures:
    """The records of a result, asked by their fields."""

    def __init__(self, result):
        self.kind = result["kind"]
        self.is_real = self.kind == "gpu"
        self.records = {part["part"]: part["records"] for part in result["parts"]}

    def find(self, part, **fields):
        return [
            record
            for record in self.records.get(part, [])
            if all(record.get(name) == value for name, value in fields.items())
        ]

    def head(self, text):
        return text if self.is_real else f"{text} ({WHAT[self.kind]})"

    def time(self, record):
        """Between two events; on ordinary memory there are none."""
        return record["event_us"] or record["done_us"]

    def limit(self, ranks, size, blocks):
        found = [
            record["event_us"] for record in self.find("limit", what="stream", ranks=ranks, bytes=size, blocks=blocks)
        ]
        return min(found) if found else None

    def judged(self, ratio, aim):
        if ratio is None or not self.is_real:
            return "–"
        return f"{100 * ratio:.0f} % {'ok' if ratio >= aim else '**below**'}"


def all_reduces(figures):
    rows = []
    for part in ("allreduce-fused", "allreduce-kernels", "allreduce-streams"):
        for record in figures.find(part, what="time", library="ours"):
            limit = figures.limit(record["ranks"], record["bytes"], record["blocks"])
            found = figures.time(record)
            rows.append(
                [
                    f"{record['path'] or '–'}, {record['label']}",
                    record["ranks"],
                    of_bytes(record["bytes"]),
                    "in" if record["in_place"] else "out",
                    record["blocks"] or "all",
                    us(found),
                    f"{2 * record['ranks'] * record['bytes'] / found / 1e3:.1f}" if found else "–",
                    us(limit),
                    figures.judged(limit / found if limit and found else None, AIM_OF_STREAMING),
                ]
            )
    text = [
        "## All-reduce beside a kernel that streams the same bytes",
        "",
        "Medians of the slowest rank, between two events around many calls; GB/s of what must be read and written, ranks times bytes each. The limit",
        f"is the faster of a copy and of a fold that waits for nothing, with as many thread blocks (all: as many as pay). Aim: at least {AIM_OF_STREAMING:.0%}.",
        "What is short of the cache's size stays in it, for both.",
        "",
    ]
    return (
        text
        + table(
            [
                figures.head("path"),
                "ranks",
                "bytes a rank",
                "place",
                "blocks",
                figures.head("µs"),
                figures.head("GB/s"),
                "limit µs",
                "of the limit",
            ],
            rows,
        )
        if rows
        else []
    )


def plans(figures):
    rows = []
    for record in figures.find("plans", what="plan"):
        limit, found = figures.limit(record["ranks"], record["bytes"], record["blocks"]), record["us"]
        rows.append(
            [
                "unasked" if record["named"] == "none" else record["named"],
                record["ran"],
                record["ranks"],
                of_bytes(record["bytes"]),
                record["blocks"] or "all",
                record["instances"],
                of_bytes(record["slot_bytes"]),
                us(found),
                f"{2 * record['ranks'] * record['bytes'] / found / 1e3:.1f}",
                us(limit),
            ]
        )
    text = [
        "## Plans of all-reduces by kernels",
        "",
        "By the algorithm that the calls named, and the plan that ran; where that algorithm's plans do not fit, the library takes its own choice. Medians of the",
        "host's clock around calls in a row, ranks of one launch. Blocks are those that a rank may have; instances, blocks that share the work of a lane.",
        "",
    ]
    heads = ["named", "ran", "ranks", "bytes a rank", "blocks", "instances", "slot"]
    return text + table([*heads, figures.head("µs"), figures.head("GB/s"), "limit µs"], rows) if rows else []


def one_rank(figures):
    groups = {}
    for record in figures.find("single"):
        if record["what"] in ("time", "launch"):
            key = (record["what"], record["collective"], record["op"], record["bytes"], record["in_place"])
            # Of single calls it is the time until the stream is empty that a caller sees.
            value = figures.time(record) if record["what"] == "time" else record["done_us"]
            groups.setdefault(key, {}).setdefault(record["library"], []).append(value)
    rows = []
    for (what, collective, op, size, in_place), of in groups.items():
        ours, theirs = (statistics.median(of[name]) if name in of else None for name in ("ours", "theirs"))
        verdict = "–"
        if figures.is_real and ours and theirs is not None:
            verdict = f"{theirs / ours:.2f} {'ok' if ours <= theirs * 1.02 else '**slower**'}"
        rows.append(
            [
                f"{collective} {op}",
                "alone" if what == "launch" else "in a row",
                of_bytes(size),
                "in" if in_place else "out",
                us(ours),
                us(theirs),
                verdict,
            ]
        )
    text = [
        "## One rank, beside NVIDIA's library",
        "",
        "In turns. In a row: between two events around many calls; alone: from the call until the stream is empty. Aim: no slower (2 % is taken for noise).",
        "",
    ]
    return (
        text
        + table(
            [
                figures.head("call"),
                "how",
                "bytes",
                "place",
                figures.head("ours µs"),
                "NVIDIA's µs",
                "NVIDIA's / ours",
            ],
            rows,
        )
        if rows
        else []
    )


def latencies(figures):
    rows = []
    for record in figures.find("latency", what="launch"):
        is_aim = record["label"] in ("-t 2", "-g 2") and record["bytes"] == 8192
        verdict = (
            f"{'ok' if record['done_us'] <= AIM_OF_LATENCY_US else '**above**'}"
            if is_aim and figures.is_real
            else "–"
        )
        rows.append(
            [
                f"{record['label']}, {record['path'] or '–'}",
                of_bytes(record["bytes"]),
                "in" if record["in_place"] else "out",
                us(record["call_us"]),
                us(record["done_us"]),
                us(record["done_least_us"]),
                us(record["event_us"]),
                verdict,
            ]
        )
    text = [
        "## From the call to the result",
        "",
        "One all-reduce at a time, ranks let go together: until the call has returned, until the stream is empty (both by the host's clock, launch and",
        f"waiting included), and between two events. Aim for 8 KiB between two ranks of a process: {AIM_OF_LATENCY_US:.0f} µs until the stream is empty.",
        "",
    ]
    return (
        text
        + table(
            [
                figures.head("ranks"),
                "bytes",
                "place",
                figures.head("returned µs"),
                figures.head("done µs"),
                "least",
                figures.head("events µs"),
                "aim",
            ],
            rows,
        )
        if rows
        else []
    )


def memories(figures):
    rows = []
    for record in figures.find("memory", what="memory"):
        kib = [f"{record[name] / 1024:.0f}" for name in ("made_bytes", "used_bytes", "left_bytes")]
        rows.append(
            [
                "ours" if record["library"] == "ours" else "NVIDIA's",
                record["label"],
                record["ranks"],
                of_bytes(record["longest"]),
                *kib,
                f"{record['made_ms']:.1f}",
            ]
        )
    text = [
        "## Device memory of a communicator",
        "",
        "What cuMemGetInfo has less, by the number of ranks: after they joined, after every collective, after the end.",
        "",
    ]
    return (
        text
        + table(
            [
                figures.head("library"),
                "placed",
                "ranks",
                "longest call",
                "joined KiB",
                "used KiB",
                "left KiB",
                figures.head("joining ms"),
            ],
            rows,
        )
        if rows
        else []
    )


def beside(figures):
    groups = {}
    for record in figures.find("beside", what="time"):
        groups.setdefault((record["label"], record["ranks"], record["bytes"], record["blocks"]), {})[
            record["library"]
        ] = figures.time(record)
    rows = []
    for (label, ranks, size, blocks), of in groups.items():
        ours, theirs = of.get("ours"), of.get("theirs")
        ratio = f"{theirs / ours:.2f}" if ours and theirs else "–"
        rows.append([label, ranks, of_bytes(size), blocks or "all", us(ours), us(theirs), ratio])
    text = [
        "## Several ranks of one device, beside NVIDIA's library",
        "",
        "All-reduce, out of place, minCTAs = maxCTAs = blocks for both.",
        "",
    ]
    return (
        text
        + table(
            [
                figures.head("how NVIDIA's takes them"),
                "ranks",
                "bytes a rank",
                "blocks",
                figures.head("ours µs"),
                "NVIDIA's µs",
                "NVIDIA's / ours",
            ],
            rows,
        )
        if rows
        else []
    )


def collectives(figures):
    rows = []
    for record in figures.find("collectives", what="time"):
        found = figures.time(record)
        rows.append(
            [
                f"{record['collective']}, {record['label']}, {record['path'] or '–'}",
                record["ranks"],
                of_bytes(record["bytes"]),
                "in" if record["in_place"] else "out",
                us(found),
                f"{record['bytes'] / found / 1e3:.2f}" if found else "–",
            ]
        )
    return (
        ["## Every collective", "", "Bytes of the longest buffer of a rank over time.", ""]
        + table(
            [figures.head("collective"), "ranks", "bytes", "place", figures.head("µs"), figures.head("GB/s")], rows
        )
        if rows
        else []
    )


def checked(figures):
    rows = []
    for part, records in figures.records.items():
        cases = sum(record["cases"] for record in records if record["what"] == "check")
        tests = [record for record in records if record["what"] == "tests"]
        wrong = sum(record["bad"] for record in records if record["what"] == "check")
        for record in tests:
            partial = f", {record['partial']} of them in part" if record.get("partial") else ""
            rows.append([part, f"{record['passed']} tests passed{partial}", record["failed"], record["ignored"]])
        if cases:
            rows.append([part, f"{cases} cases", wrong, 0])
    return (
        [
            "## What was compared",
            "",
            "A case is a call on all ranks; every element of every rank was compared.",
            "",
        ]
        + table(["part", "compared", "wrong", "left out"], rows)
        if rows
        else []
    )


def answers(figures):
    """What the probe found out, each experiment's cases below each other."""
    rows = []
    for record in figures.find("probe", what="probe"):
        rest = {name: value for name, value in record.items() if name not in ("what", "asks", "answer")}
        rows.append([record["asks"], record.get("answer", "–"), ", ".join(f"{name} {value}" for name, value in rest.items())])
    return ["## What the probe answered", ""] + table(["experiment", "answer", "case and figures"], rows) if rows else []


def outcomes(result):
    """The table of parts."""
    rows = []
    for part in result["parts"]:
        said = mark(part, result.get("may_skip", []))
        first = part["reason"].splitlines()[0] if part["reason"] and part["outcome"] == "skipped" else ""
        said = f"**{said}**" if said.isupper() else said
        rows.append([part["part"], f"{said}: {first}" if first else said, part["seconds"], part["about"]])
    return ["## Parts", ""] + table(["part", "outcome", "s", "what"], rows)


def markdown(result):
    figures = Figures(result)
    lines = [TITLES[result["kind"]], "", f"`scripts/gpu-check`, {result['date']}; seed {result['seed']}.", ""]
    for machine in figures.find("machine", what="machine"):
        lines += table(["what", "which"], [[name, value] for name, value in machine.items() if name not in ("what",)])
    for run in [record for records in figures.records.values() for record in records if record["what"] == "run"][:1]:
        version = f"CUDA {run['driver'] // 1000}.{run['driver'] % 1000 // 10}" if run["driver"] else "none"
        lines += [
            f"Device as the driver names it: {run['device']}, compute capability {run['capability']}, {run['processors']} multiprocessors; driver's {version}.",
            "",
        ]
    lines += outcomes(result)
    red = [part["part"] for part in result["parts"] if mark(part, result.get("may_skip", [])).isupper()]
    lines += [f"Not shown: {', '.join(red)}." if red else "All of these were shown.", ""]
    for section in (checked, answers, all_reduces, plans, one_rank, latencies, memories, beside, collectives):
        lines += section(figures)
    noted = [part for part in result["parts"] if part["notes"]]
    if noted:
        lines += ["## Said by the parts", ""]
        for part in noted:
            lines += [f"- {part['part']}: {note}" for note in dict.fromkeys(part["notes"])]
        lines.append("")
    for part in result["parts"]:
        if part["outcome"] in ("FAILED", "running"):
            lines += [
                f"## {part['part']} {'failed' if part['outcome'] == 'FAILED' else 'was cut'}",
                "",
                part["reason"],
                "",
                "```",
                part["log"].strip()[-4000:],
                "```",
                "",
            ]
    return "\n".join(lines)
