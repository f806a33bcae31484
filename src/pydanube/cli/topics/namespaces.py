"""`danube namespaces`: create, list, describe and delete namespaces, and set policies of their topics."""

from __future__ import annotations

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import NAMESPACE, broker_options, confirm, examples, expected_option, yes_option
from pydanube.cli.output import fields, show, shown_as_json
from pydanube.cli.paging import PageOptions, page_options
from pydanube.cli.synonyms import Group
from pydanube.cli.topics.policies import namespace_policies
from pydanube.model.paging import PageQuery


@click.group(
    cls=Group,
    epilog=examples(
        """
danube namespaces create shop
danube namespaces list
danube namespaces describe shop --json
danube namespaces policies shop --set retention_s=1d
danube namespaces delete shop --yes
"""
    ),
)
def namespaces() -> None:
    """Create, list, describe and delete namespaces."""


namespaces.add_command(namespace_policies)


@namespaces.command("create", epilog=examples("danube namespaces create shop"))
@click.argument("namespace", type=NAMESPACE)
@broker_options
def create(namespace: str, url: str) -> None:
    """Create a namespace."""
    with_client(url, lambda client: client.create_namespace(namespace))
    show({"namespace": namespace, "created": True}, f"created {namespace}")


@namespaces.command(
    "list", epilog=examples("danube namespaces list --json\ndanube namespaces list --filter 'shop*' --limit 20")
)
@page_options()
@broker_options
def list_(page: PageOptions, url: str) -> None:
    """List namespaces by name.

    With --limit one page is printed, and on stderr what to add for the next one. With --json a page is an object with
    "namespaces" and "next", otherwise all names are one list.
    """
    from pydanube.client import Client

    async def work(client: Client) -> tuple[list[str], str]:
        async def ask(query: PageQuery) -> tuple[list[str], str]:
            found = await client.namespace_page(
                filter=query.filter, sort=query.sort, limit=query.limit, after=query.after
            )
            return found.names, found.next

        return await page.collect(ask)

    page.show("namespaces", *with_client(url, work))


@namespaces.command("describe", epilog=examples("danube namespaces describe default"))
@click.argument("namespace", type=NAMESPACE)
@broker_options
def describe(namespace: str, url: str) -> None:
    """Show a namespace and the topics in it."""
    from pydanube.client import Client
    from pydanube.model.errors import NotFound

    async def work(client: Client) -> list[str]:
        if namespace not in await client.list_namespaces():
            raise NotFound(f"namespace {namespace!r} does not exist: 'danube namespaces list' shows those that do")
        return await client.list_topics(namespace)

    topics = with_client(url, work)
    if shown_as_json({"namespace": namespace, "topics": topics}):
        return
    fields([("namespace", namespace), ("topics", len(topics))])
    for topic in topics:
        click.echo(f"  {topic}")


@namespaces.command("delete", epilog=examples("danube namespaces delete shop --yes"))
@click.argument("namespace", type=NAMESPACE)
@yes_option
@expected_option
@broker_options
def delete(namespace: str, yes: bool, expected: str, url: str) -> None:
    """Delete a namespace that has no topics."""
    confirm(f"Delete namespace {namespace}?", yes)
    with_client(url, lambda client: client.delete_namespace(namespace, expected=expected))
    show({"namespace": namespace, "deleted": True}, f"deleted {namespace}")
