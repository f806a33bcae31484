"""The root command: which commands exist, how they are loaded, and which exit code a failure has.

Commands are imported when they are called, so that ``danube --version`` and ``--help`` stay instant; their one-line
summaries are therefore written here and checked against the commands by a test.

Exit codes: 0 done, 1 failed (one line on stderr), 2 wrong usage, 130 interrupted. `consume`, `reply`, `top`, `serve`
and `pipeline run` run until they are stopped, so Ctrl-C ends them with 0; a second Ctrl-C interrupts that orderly end.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final, NoReturn

import click

from pydanube.model.errors import DanubeError, Unauthenticated
from pydanube.version import __version__

from .credential_options import credential_options
from .standard_streams import finish_stdout, stdout_failed
from .synonyms import Group
from .tls_options import tls_file_options

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("setup.serve:serve", "Start a broker."),
    "produce": ("messages.produce:produce", "Publish messages to a topic."),
    "consume": ("messages.consume:consume", "Receive messages from a topic."),
    "request": ("messages.request:request", "Ask the consumers of a topic, and print the reply."),
    "reply": ("messages.request:reply", "Answer the requests of a topic, one after the other, and print them."),
    "topics": ("topics.topics:topics", "Create, grow, list, describe, measure, unload, truncate and delete topics."),
    "subscriptions": (
        "subscriptions.subscriptions:subscriptions",
        "Create, list, describe, move and delete subscriptions.",
    ),
    "app": ("services.app:app", "Run and describe services made with pydanube.App."),
    "schemas": ("schemas.schemas:schemas", "Register, read, compare and delete schemas, and bind topics to them."),
    "dlq": ("subscriptions.dlq:dlq", "List, show, redrive and drop dead letters."),
    "top": ("topics.top:top", "Watch topics and subscriptions: rates, backlogs, redeliveries."),
    "namespaces": ("topics.namespaces:namespaces", "Create, list, describe and delete namespaces."),
    "sql": ("spark.sql:sql", "Query topics with SQL."),
    "queries": (
        "spark.queries:queries",
        "List, describe and forget queries that write by stages, such as Spark streams.",
    ),
    "pipeline": ("spark.pipeline:pipeline", "Run, check and list Spark pipelines from YAML files."),
    "table": (
        "spark.table:table_",
        "Land topics in Delta and Iceberg tables, exactly once, and look after the tables.",
    ),
    "brokers": ("cluster.brokers:brokers", "List brokers, drain and remove them, and see what they have left over."),
    "cluster": ("cluster.cluster:cluster", "Show the cluster, its brokers and their load, and finish its upgrade."),
    "auth": ("security.auth:auth", "Manage roles, bindings, API keys and quotas, and ask what one may do."),
    "storage": ("storage.storage:storage", "Serve and look after object stores."),
    "metadata": ("storage.metadata:metadata", "Move the metadata of a broker that is stopped."),
    "inspect": ("storage.inspect:inspect", "Look into stored files without a broker."),
    "profile": ("setup.profile:profile", "Name brokers and their credentials, for --profile."),
    "config": ("setup.config:config", "Show and check the configuration."),
    "certs": ("security.certs:certs", "Create certificates for development."),
    "console": ("setup.console:console", "Show a broker in a browser."),
    "demo": ("setup.demo:demo", "Show a live feed, a broker that is killed, and that nothing is lost."),
    "generate": ("setup.generate:generate", "Print or write files for the programs around a broker."),
    "debug": ("setup.debug:debug", "Collect what a report of a problem needs."),
    "doctor": ("setup.doctor:doctor", "Check whether this machine is ready for a broker."),
    "completion": ("setup.completion:completion", "Print the script that completes commands in a shell."),
    "bench": ("bench.command:bench", "Measure throughput and latency, with baselines and an integrity check."),
}

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

HELP_COLUMNS_MAX: Final = 1_000
"""Help is as wide as the terminal; without one it has 80 columns, or COLUMNS."""


_HOW_TO_SHOW: Final = " (--token-file, --profile, DANUBE_TOKEN or --tls-cert-file); the broker's audit log says why"
"""Behind the message of Unauthenticated, which names no option of the command line."""


class LazyGroup(Group):
    """A group that knows its commands by name and imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(f"{__package__}.{module_name}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end the process here, with exit code 1 and without a word
            raise click.ClickException("broken pipe") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS_MAX},
    epilog="""\b
Try it, in two terminals:
  danube serve
  danube produce /default/hello -m 'hello, danube'
  danube consume /default/hello --from earliest --count 1

\b
Client commands talk to --url, --profile or DANUBE_URL, danube://127.0.0.1:6655 by default.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
Ctrl-C ends consume, reply, top, serve and pipeline run with 0.
'danube COMMAND --help' teaches each command by example.""",
)
@click.version_option(__version__, "-V", "--version", prog_name="danube", message="%(prog)s %(version)s")
@click.option("--url", help="Where the broker is, for commands that talk to one; also after the command.")
@tls_file_options
@credential_options
def cli(url: str | None) -> None:  # read by the commands themselves
    """A message broker: work queues, publish/subscribe between services, and event streams that end in a data lake."""


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit the process with its exit code."""
    try:
        status, failure = _outcome(arguments)
    finally:  # also if a mistake of ours ends the command
        unwritten = finish_stdout()
    if isinstance(unwritten, BrokenPipeError):
        status, failure = 0, ""
    elif unwritten is not None:
        reason = (unwritten.strerror or str(unwritten)).lower()
        status, failure = EXIT_FAILED, f"stdout cannot be written: {reason}; the output is not complete"
    if failure:
        click.echo(f"danube: {failure}", err=True)
    sys.exit(status)


def _outcome(arguments: list[str] | None) -> tuple[int, str]:
    """Run one command; return its exit code, and what failed in one line. The context's `obj` is whether the process
    runs nothing else."""
    try:
        status = cli.main(arguments, prog_name="danube", standalone_mode=False, obj=arguments is None)
    except SystemExit as ended:
        status = ended.code
    except click.Abort:
        return 130, "interrupted"
    except click.UsageError as error:
        error.show()
        return error.exit_code, ""
    except click.ClickException as error:
        return error.exit_code, error.format_message()
    except Unauthenticated as error:
        return EXIT_FAILED, _one_line(f"{error.message}{_HOW_TO_SHOW}")
    except DanubeError as error:
        return EXIT_FAILED, _one_line(error.message)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return EXIT_FAILED, _one_line(f"{(error.strerror or str(error)).lower()}{where}")
    except Exception:
        if not stdout_failed():
            raise
        return EXIT_FAILED, ""  # whatever it is, it follows from the output that failed
    return status if isinstance(status, int) else 0, ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
