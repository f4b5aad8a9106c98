"""Files of an experiment: results.json, table.md, figure.svg and a page; and one page for several experiments."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from qkv.convert.files import read_json, write_json, write_text
from qkv.lab.experiment import Claim, ClaimResult, Experiment, Table, to_json
from qkv.text.wording import format_duration

STYLE = """
:root { color-scheme: light dark; --ground: light-dark(#fff, #14151a); --ink: light-dark(#1d1f27, #e9eaef);
  --quiet: light-dark(#5d6170, #a3a8b8); --line: light-dark(#dedfe3, #343843); }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin: 0 } section { border-top: 1px solid var(--line); padding: 1.25rem 0 }
dl { display: grid; grid-template-columns: 8rem 1fr; gap: .25rem 1rem } dt { color: var(--quiet) } dd { margin: 0 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
.text th, .text td, th:first-child, td:first-child { text-align: left } .text td { white-space: normal }
svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px } .holds { color: light-dark(#1f7a3d, #6fd08c) }
.part { color: light-dark(#8a5a00, #e5b657) } .fails { color: light-dark(#b3261e, #ff8a80) }
.undecided { color: var(--quiet) } h2 { break-after: avoid } figure, svg, tr { break-inside: avoid }
@media print { body { max-width: none; padding: 0 } .scroll { overflow: visible } table { font-size: .7rem }
  th, td { white-space: normal } }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr } dt { margin-top: .5rem } }
"""
CLASSES = {"holds": "holds", "holds in part": "part", "does not hold": "fails", "undecided": "undecided"}
"""CSS class of each verdict."""


def write_result(claim: Claim, result: ClaimResult, lab: Experiment, command: str, seconds: float) -> dict[str, Any]:
    """Write the files of one experiment and return the contents of results.json.

    seconds: of this command; one that has measured nothing keeps those of the command that has.
    """
    file = lab.folder / "results.json"
    if not lab.new and file.is_file():
        seconds = read_json(file)["seconds"]
    found = to_json(claim, result) | {
        "seeds": list(lab.seeds), "full": lab.full, "command": command, "seconds": round(seconds, 1), **describe_measurement(),
    }  # fmt: skip
    lab.folder.mkdir(parents=True, exist_ok=True)
    write_json(file, found)
    write_text(lab.folder / "table.md", result.table.markdown() + "\n")
    write_text(lab.folder / "figure.svg", result.figure)
    write_text(lab.folder / "index.html", page(f"{claim.id}: {result.verdict}", [section(found, result.figure)]))
    return found


def describe_measurement() -> dict[str, str]:
    """Return when and on what machine the numbers were measured."""
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return {"date": f"{datetime.date.today()}", "machine": f"{machine}, {versions}"}


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of earlier experiments by the name of their folder ("C2", "C2-full"), in the order of the claims."""
    found = {file.parent.name: read_json(file) for file in folder.glob("C*/results.json")}
    return dict(sorted(found.items(), key=lambda item: (int(item[1]["id"][1:]), item[0])))


def last_verdict(results: Mapping[str, dict[str, Any]], claim: str) -> str:
    """Return the verdict of a claim, of the full version if there is one; empty where it has not run."""
    found = results.get(f"{claim}-full") or results.get(claim)
    return "" if found is None else f"{found['verdict']}{mark_full(found)}"


def mark_full(found: Mapping[str, Any]) -> str:
    return " (full)" if found["full"] else ""


def write_report(folder: Path, results: Mapping[str, dict[str, Any]], failed: Mapping[str, str]) -> Path:
    """Write one page with every experiment of `results`, headed by a table of verdicts; `failed`: claims and their errors."""
    rows = [[f"{one['id']}{mark_full(one)}", one["verdict"], one["finding"]] for one in results.values()]
    rows += [[name, "failed", error] for name, error in failed.items()]
    rows.sort(key=lambda row: int(row[0].split()[0][1:]))
    summary = f"<section class=text>{table_html(Table(['claim', 'verdict', 'finding'], rows))}</section>"
    sections = [section(one, (folder / name / "figure.svg").read_text("utf-8")) for name, one in results.items()]
    path = folder / "report.html"
    write_text(path, page("The claims of the lectures", [summary, *sections]))
    return path


def page(title: str, sections: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    body = f"<main><h1>{escape(title)}</h1>{''.join(sections)}</main>"
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def section(found: Mapping[str, Any], figure: str) -> str:
    """Return the section of one claim: its sentence, set-up, verdict, table and figure."""
    facts = {
        "Set-up": found["setup"], "Finding": found["finding"], "Refuted by": found["refuted_by"],
        "Basis": f"{found['basis']}{', full version' if found['full'] else ''}", "Command": found["command"],
        "Measured": f"{found['date']}, in {format_duration(found['seconds'])}, {found['machine']}",
    }  # fmt: skip
    verdict = f'<p class="{CLASSES[found["verdict"]]}"><strong>Verdict: {escape(found["verdict"])}</strong></p>'
    table = table_html(Table(found["table"]["columns"], found["table"]["rows"]))
    return (
        f'<section id="{escape(found["id"])}{"-full" if found["full"] else ""}">'
        f"<h2>{escape(found['id'])}{mark_full(found)}: {escape(found['claim'])}</h2>"
        f"<p>Lectures {escape(found['lectures'])}</p>{verdict}{facts_html(facts)}{figure}{table}</section>"
    )


def table_html(table: Table) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in table.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts_html(facts: Mapping[str, Any]) -> str:
    """Return a description list of names and texts."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(text))}</dd>" for name, text in facts.items())
    return f"<dl>{listed}</dl>"
