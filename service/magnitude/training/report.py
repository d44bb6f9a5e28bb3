"""What was trained and how it is proven, for people: as Markdown, or as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import msgspec

from magnitude.errors import ConfigError, MagnitudeError
from magnitude.policy.trained import Gain, ModelTable, Trained
from magnitude.policy.tree import in_words
from magnitude.training.reading import Skipped

KINDS = (".md", ".html")
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:left}"
    "pre{background:#f4f4f4;padding:1em}"
)


class _Table(msgspec.Struct, frozen=True):
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class _Section(msgspec.Struct, frozen=True):
    title: str
    body: tuple[str | _Table, ...]  # a text with more than one line stands as it is


def can_report(target: Path) -> None:
    """To be asked before anything is computed. Raises `ConfigError` for another kind of file."""
    if target.suffix not in KINDS:
        raise ConfigError(
            f"{target} is no kind of report that is known",
            hint=f"Let it end in {' or '.join(KINDS)}",
            param="--report",
        )


def write_report(target: Path, trained: Trained, skipped: Sequence[Skipped] = ()) -> None:
    """Write it in the kind that the name says. Raises `ConfigError` as `can_report`, and `MagnitudeError` where the
    file cannot be written."""
    can_report(target)
    sections = _sections(trained, skipped)
    text = _markdown(sections) if target.suffix == ".md" else _html(sections)
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise MagnitudeError(
            f"{target} cannot be written: {error.strerror or error}",
            hint="Name a file in a folder that you may write",
        ) from error


def gain_in_words(gain: Gain) -> str:
    """ "9.7 % (7.9 to 11.5)"."""
    return f"{100 * gain.gain:.1f} % ({100 * gain.low:.1f} to {100 * gain.high:.1f})"


def compared(gain: Gain) -> str:
    """How much of the tasks could be compared."""
    return f"{gain.tasks} of {gain.all_tasks}"


def _sections(trained: Trained, skipped: Sequence[Skipped]) -> list[_Section]:
    proof = trained.proof
    read = f"From {proof.tasks} tasks in {count(proof.files, 'file')} of {count(len(proof.boards), 'board')}"
    read += f": {', '.join(proof.boards)}." if proof.boards else "."
    if trained.empty:
        title = "Nothing was learned"
        verdict = "No situation was run both as the model was loaded and otherwise, often enough."
    else:
        title, read = "Trained table", f"{read} Id {trained.trained_id}."
        verdict = (
            f"Refused: it would lose in {count(len(proof.losses), 'place')}."
            if proof.losses
            else f"It loses nowhere by more than {proof.tolerance:.0%} of the time."
        )
    sections = [_Section(title, (read, verdict, *proof.notes))]
    if proof.losses:
        lost = _Table(
            ("Board", "Model", "Part", "By", "Situation", "Why"),
            tuple((loss.board, loss.model, loss.part, loss.method, loss.key, loss.why) for loss in proof.losses),
        )
        sections.append(_Section("Where it would lose", (lost,)))
    if proof.gains:
        sections.append(_gains(proof.gains))
    sections += [_of_model(table) for table in trained.tables]
    if trained.tree is not None:
        sections.append(_Section("Tree for other boards", (in_words(trained.tree),)))
    if skipped:
        left_out = tuple((one.path, one.why, one.hint) for one in skipped)
        sections.append(_Section("Files left out", (_Table(("File", "Why", "What to do"), left_out),)))
    return sections


def _gains(gains: Sequence[Gain]) -> _Section:
    saved = _Table(
        ("Board", "Model", "Part", "By", "Situation", "Saved", "Tasks compared"),
        tuple(
            (gain.board, gain.model, gain.part, gain.method, gain.key, gain_in_words(gain), compared(gain))
            for gain in gains
        ),
    )
    return _Section(
        "Expected gain",
        (
            "Share of the time saved against the model as it was loaded, on work that was held back: a stretch of "
            "time of the same board for tables, another board for the tree. In brackets the 95 % interval. Only "
            "tasks in situations where both were tried are compared.",
            saved,
        ),
    )


def _of_model(table: ModelTable) -> _Section:
    entries = tuple((str(entry.part), entry.key, entry.chosen.choice_id) for entry in table.entries)
    body: list[str | _Table] = [_Table(("Part", "Situation", "Choice"), entries)]
    if table.rejected:
        rejected = tuple((str(one.part), one.key, one.choice.choice_id, one.reason) for one in table.rejected)
        body += ["Not to be used:", _Table(("Part", "Situation", "Choice", "Why"), rejected)]
    return _Section(f"{table.model} on {table.board}", tuple(body))


def _markdown(sections: Sequence[_Section]) -> str:
    lines: list[str] = []
    for level, section in enumerate(sections):
        lines += [f"{'#' if level == 0 else '##'} {section.title}", ""]
        for part in section.body:
            if isinstance(part, _Table):
                lines.append(_markdown_row(part.head))
                lines.append(_markdown_row(["---"] * len(part.head)))
                lines += [_markdown_row(row) for row in part.rows]
            else:
                lines += ["```", part, "```"] if "\n" in part else [part]
            lines.append("")
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _html(sections: Sequence[_Section]) -> str:
    body: list[str] = []
    for level, section in enumerate(sections):
        tag = "h1" if level == 0 else "h2"
        body.append(f"<{tag}>{html.escape(section.title)}</{tag}>")
        for part in section.body:
            if isinstance(part, _Table):
                body.append("<table>")
                body.append(_html_row(part.head, "th"))
                body += [_html_row(row, "td") for row in part.rows]
                body.append("</table>")
            else:
                tag = "pre" if "\n" in part else "p"
                body.append(f"<{tag}>{html.escape(part)}</{tag}>")
    head = f'<meta charset="utf-8"><title>{html.escape(sections[0].title)}</title><style>{_STYLE}</style>'
    return "\n".join(["<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *body, "</body></html>", ""])


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def count(number: int, thing: str) -> str:
    """ "1 table", "2 tables"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
