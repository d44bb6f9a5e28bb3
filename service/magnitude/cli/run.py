"""`magnitude run`: talk to the model in the terminal, through the running service."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from magnitude.cli.client import ServiceClient, ServiceRefused
from magnitude.cli.options import ConfigOption, KeyOption, ModelOption, UrlOption, reach_service

HELP = """\
/reset          forget the conversation
/system TEXT    set the system prompt (and start anew); without TEXT: remove it
/model NAME     use another model; without NAME: list them
/help           this text
/exit           leave (also Ctrl-D)
Ctrl-C stops an answer."""


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    *,
    question: Annotated[
        list[str] | None, typer.Argument(help="Ask this and leave. Without it: a conversation.")
    ] = None,
    model: ModelOption = "default",
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", min=0, max=2, help="0: always the best token.")
    ] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Chat with the model. The service must be running."""
    text = " ".join(question or []) or ("" if sys.stdin.isatty() else sys.stdin.read().strip())
    limits = {"max_tokens": max_tokens, "temperature": temperature}
    with reach_service(config, url, api_key) as client:
        chat = Conversation(
            client, model, system, {name: value for name, value in limits.items() if value is not None}
        )
        if text:
            complete = chat.ask(text)
            raise typer.Exit(0 if complete else 130)
        converse(chat)


class Conversation:
    """The turns so far, and how to make the next one."""

    def __init__(self, client: ServiceClient, model: str, system: str | None, options: dict[str, Any]) -> None:
        self.client = client
        self.model = model
        self.system = system
        self.turns: list[dict[str, str]] = []
        self._options = options

    def ask(self, text: str) -> bool:
        """Print the answer to `text` as it comes; false when Ctrl-C stopped it. What was said stays in the
        conversation, also when it was cut short. Raises `ServiceRefused`; the turn is then taken back."""
        self.turns.append({"role": "user", "content": text})
        while True:
            try:
                return self._answer()
            except ServiceRefused as error:
                if error.code == "context_length_exceeded" and len(self.turns) > 1:
                    del self.turns[:2]  # the oldest question and its answer
                    typer.echo("(the conversation has become too long: its oldest turn is left out)", err=True)
                    continue
                self.turns.pop()
                raise

    def _answer(self) -> bool:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": self.model, "messages": messages + self.turns, **self._options}
        said: list[str] = []
        finish: str | None = None
        complete = True
        stream = self.client.chat(body)
        try:
            for delta in stream:
                said.append(delta.text)
                finish = delta.finish_reason or finish
                typer.echo(printable(delta.text), nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            complete = False
        finally:
            stream.close()  # hangs up, which stops the model
        typer.echo("")
        if not complete:
            typer.echo("(stopped)", err=True)
        elif finish == "length":
            typer.echo("(cut at the token limit; --max-tokens N allows more)", err=True)
        self.turns.append({"role": "assistant", "content": "".join(said)})
        return complete


def printable(text: str) -> str:
    """`text` without what would drive the terminal: a model can be talked into anything."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def converse(chat: Conversation) -> None:
    """Questions and answers until Ctrl-D or /exit."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and the history of this session for input())
    typer.echo("Ask something. /help shows the commands, Ctrl-D leaves.")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            typer.echo("")
            return
        except KeyboardInterrupt:
            typer.echo("\n(Ctrl-D or /exit leaves)")
            continue
        try:
            if text in ("/exit", "/quit", "/bye"):
                return
            if text.startswith("/"):
                command(chat, text)
            elif text:
                chat.ask(text)
        except ServiceRefused as error:
            typer.echo(f"error: {error.message}", err=True)
            if error.hint:
                typer.echo(f"hint: {error.hint}", err=True)


def command(chat: Conversation, line: str) -> None:
    """Carry out a `/command`."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/reset":
        chat.turns.clear()
        typer.echo("(forgotten)")
    elif name == "/system":
        chat.system = rest or None
        chat.turns.clear()
        typer.echo("(system prompt set)" if rest else "(system prompt removed)")
    elif name == "/model" and rest:
        chat.model = rest
        typer.echo(f"(using {rest})")
    elif name == "/model":
        for entry in chat.client.get("/v1/models").get("data", []):
            typer.echo(f"  {entry.get('id')}")
    elif name == "/help":
        typer.echo(HELP)
    else:
        typer.echo(f"unknown command {name}; /help lists them", err=True)
