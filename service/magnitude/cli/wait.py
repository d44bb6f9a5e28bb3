"""`magnitude wait`: block until the service is ready."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from magnitude.cli.options import (
    ConfigOption,
    KeyOption,
    ListenOption,
    SetOption,
    UrlOption,
    reach_service,
    read_configuration,
    with_listen,
)

POLL_S = 0.2  # a person does not notice it, and it costs the starting service nothing

HOW_TO = """
Ready. Talk to it with any OpenAI client, for example:

  curl {curl}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  print(client.chat.completions.create(model="default", messages=[
      {{"role": "user", "content": "What is the capital of France?"}}],
      temperature=0).choices[0].message.content)

In a terminal:{command} run
"""


def register(app: typer.Typer) -> None:
    app.command("wait")(wait)


def wait(
    *,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, metavar="S", help="Give up after S seconds.")
    ] = 120.0,
    while_pid: Annotated[
        int | None, typer.Option("--while-pid", metavar="PID", help="Give up when this process is gone.")
    ] = None,
    how_to: Annotated[bool, typer.Option("--how-to", help="Then print how to talk to it.")] = False,
    config: ConfigOption = None,
    overrides: SetOption = None,
    listen: ListenOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Wait until the service is ready to answer. Takes the options of `serve` that say where that is."""
    from magnitude.cli.client import ServiceUnreachable

    overrides = with_listen(overrides, listen)
    deadline_s = time.monotonic() + timeout_s
    why = ""
    while True:
        try:
            with reach_service(config, url, api_key, overrides) as client:
                ready, said = client.readiness()
                if ready:
                    break
                why = "; ".join(str(reason) for reason in said.get("reasons", []))
        except ServiceUnreachable as error:
            why = error.message
        if time.monotonic() >= deadline_s or (while_pid is not None and not _alive(while_pid)):
            raise ServiceUnreachable(f"the service is not ready: {why}", hint="See its log, or `magnitude doctor`")
        time.sleep(POLL_S)
    if how_to:
        typer.echo(how_to_text(config, overrides))


def how_to_text(config: Path | None, overrides: list[str]) -> str:
    """What to type next, for the addresses of the configuration."""
    import shlex
    import sys

    from magnitude.config import parse_listen
    from magnitude.paths import find_paths

    settings = read_configuration(config, overrides).settings
    tcp = parse_listen(settings.server.listen)
    socket = settings.server.unix_socket or str(find_paths().unix_socket)
    home = os.environ.get("MAGNITUDE_HOME")
    command = f" MAGNITUDE_HOME={shlex.quote(home)}" if home else ""
    return HOW_TO.format(
        curl=f"http://{tcp}" if tcp else f"--unix-socket {socket} http://localhost",
        url=f"http://{tcp}" if tcp else "http://localhost",
        command=f"{command} {shlex.quote(sys.argv[0])}",
    )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
