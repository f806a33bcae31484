"""`danube config`: every setting, its value and the source of the value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.cli import output
from pydanube.cli.options import config_option, examples, json_option
from pydanube.cli.output import table
from pydanube.cli.synonyms import Group

if TYPE_CHECKING:
    from pydanube.settings import Settings


@click.group(
    cls=Group,
    epilog=examples(
        """
danube config show
danube config show --config danube.toml --changed
danube config validate --config danube.toml
"""
    ),
)
def config() -> None:
    """Show and check the configuration."""


def load(path: Path | None) -> Settings:
    from pydanube.settings import Settings

    return Settings.load(path, os.environ)


@config.command(
    "show",
    epilog=examples(
        """
danube config show
danube config show --changed --json
DANUBE_LOG_FILE_BYTES=64MiB danube config show --changed
"""
    ),
)
@config_option
@click.option("--changed", is_flag=True, help="Only what the file or the environment gives.")
@json_option
def show(path: Path | None, changed: bool) -> None:
    """Show every setting, its value, and whether a file, the environment or a default gave it.

    The command line goes before the environment, the environment before the file, the file before the default.
    """
    described = [one for one in load(path).describe() if not changed or one.source != "default"]
    output.show(
        described,
        lambda: table(
            ["setting", "value", "source", "meaning"], [(one.key, one.value, one.source, one.help) for one in described]
        ),
    )


@config.command("validate", epilog=examples("danube config validate --config danube.toml"))
@config_option
@json_option
def validate(path: Path | None) -> None:
    """Check the file and the environment; says which key is wrong and what is allowed."""
    sources = load(path).sources
    output.show(
        {"valid": True, "changed": dict(sources)},
        f"valid: {len(sources)} setting{'s' * (len(sources) != 1)} given, the others have their defaults",
    )
