"""`danube generate`: files for the programs around a broker, the same that the repository has in `deploy/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from pydanube.cli.options import examples
from pydanube.cli.output import fail, note
from pydanube.cli.setup.shipped import shipped
from pydanube.cli.synonyms import Command
from pydanube.version import __version__

FILES: Final[dict[str, tuple[str, ...]]] = {
    "grafana": ("grafana/danube.json",),
    "prometheus": ("prometheus/danube-rules.yml", "prometheus/prometheus.yml"),
    "systemd": ("danube.service", "danube.toml", "journald@danube.conf", "logrotate.d/danube"),
    "compose": ("compose.yaml", "cluster/Dockerfile"),
}
"""What there is, and its files below deploy/. The first is the one that is printed."""

FROM_SOURCE: Final = (
    "COPY . /source\nRUN pip install --no-cache-dir '/source[arrow,cloud,etcd,grpc,schemas]' && rm -rf /source\n"
)
_CHANGES: Final = (
    ("Built from the root of the repository by compose.yaml.", "Built by compose.yaml."),
    (FROM_SOURCE, f"RUN pip install --no-cache-dir 'pydanube[arrow,cloud,etcd,grpc,schemas]=={__version__}'\n"),
    ("context: .., dockerfile: deploy/cluster/Dockerfile", "context: ., dockerfile: Dockerfile"),
    ("deploy/logrotate.d/danube", "logrotate-danube"),
    ("deploy/", ""),
)
"""What differs outside a checkout: images have the released package, and all files are in one directory."""


@click.command(
    cls=Command,
    epilog=examples(
        """
danube generate grafana > dashboard.json
danube generate prometheus --directory monitoring
danube generate systemd --directory .
danube generate compose --directory cluster && docker compose -f cluster/compose.yaml up
"""
    ),
)
@click.argument("what", type=click.Choice(list(FILES)))
@click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write all files there.  [default: print the main one]",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
def generate(what: str, directory: Path | None, force: bool) -> None:
    """Print or write files for the programs around a broker.

    \b
      grafana      a dashboard
      prometheus   alert rules, and a configuration that scrapes a broker
      systemd      a unit, settings for it, and limits for its log
      compose      three brokers, etcd and an object store in containers, with their Dockerfile
    """
    files = dict(_texts(what))
    if directory is None:
        (main, text), *others = files.items()
        click.echo(text, nl=False)
        if others:
            named = ", ".join(name for name, _ in others)
            note(f"this is {main}; --directory DIR writes {named} too")
        return
    there = [name for name in files if (directory / name).exists()]
    if there and not force:
        fail(f"{', '.join(there)} is in {directory} already: add --force to replace it, or choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
        click.echo(directory / name)


def _texts(what: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    for place in FILES[what]:
        text = shipped(f"deploy/{place}").read_text()
        for here, outside in _CHANGES:
            text = text.replace(here, outside)
        yield place.replace("logrotate.d/", "logrotate-").rpartition("/")[2], text
