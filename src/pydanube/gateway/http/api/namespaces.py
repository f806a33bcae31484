"""Operations on namespaces and their policies."""

from __future__ import annotations

from typing import Final

from pydanube.codec.native import requests as wire
from pydanube.model.paging import NamePage, PageQuery
from pydanube.model.policies import DEFAULTS, Policies

from .etags import expected_version
from .operations import BASE, Answer, ApiCall, Operation
from .policies import PATCH_TEXT, changes_of, report

_PATH: Final = f"{BASE}/namespaces/{{namespace}}"
_REPORT: Final = wire.PolicyReport(Policies(retention_s=86_400), DEFAULTS)


async def _list(call: ApiCall) -> NamePage:
    return await call.broker.listing.namespaces(call.principal, call.query)


async def _create(call: ApiCall) -> Answer:
    namespace = call.path["namespace"]
    await call.broker.create_namespace(call.principal, namespace)
    return Answer(NamePage([namespace]), headers={"location": f"{BASE}/namespaces/{namespace}/policies"})


async def _delete(call: ApiCall) -> None:
    await call.broker.delete_namespace(call.principal, call.path["namespace"], expected_version(call))


async def _policies(call: ApiCall) -> Answer:
    return report(await call.broker.policies.get(call.principal, call.path["namespace"]))


async def _set_policies(call: ApiCall) -> Answer:
    target, expected = call.path["namespace"], expected_version(call)
    return report(await call.broker.policies.set(call.principal, target, changes_of(call), expected))


OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{BASE}/namespaces",
        name="listNamespaces",
        summary="List namespaces",
        tag="namespaces",
        handler=_list,
        query=PageQuery,
        reply=NamePage,
        reply_example=NamePage(["default", "shop"]),
        native=(wire.ListNamespaces,),
    ),
    Operation(
        method="PUT",
        path=_PATH,
        name="createNamespace",
        summary="Create a namespace",
        tag="namespaces",
        handler=_create,
        reply=NamePage,
        reply_example=NamePage(["shop"]),
        status=201,
        native=(wire.CreateNamespace,),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        name="deleteNamespace",
        summary="Delete a namespace",
        description="Refused while topics are in it.",
        tag="namespaces",
        handler=_delete,
        takes_if_match=True,
        native=(wire.DeleteNamespace,),
    ),
    Operation(
        method="GET",
        path=f"{_PATH}/policies",
        name="getNamespacePolicies",
        summary="Get the policies of a namespace",
        tag="namespaces",
        handler=_policies,
        reply=wire.PolicyReport,
        reply_example=_REPORT,
        has_etag=True,
        native=(wire.GetPolicies,),
    ),
    Operation(
        method="PATCH",
        path=f"{_PATH}/policies",
        name="setNamespacePolicies",
        summary="Change policies of a namespace",
        description=PATCH_TEXT,
        tag="namespaces",
        handler=_set_policies,
        body=Policies,
        body_example={"retention_s": 86_400, "ttl_s": None},
        reply=wire.PolicyReport,
        reply_example=_REPORT,
        has_etag=True,
        takes_if_match=True,
        native=(wire.SetPolicies,),
    ),
)
