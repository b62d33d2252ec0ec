"""Load and address: what is throttled, reserved, and in front of the API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infrastructure.stack import functions, part, refusals, resources, template
from tests.infrastructure.transformed import made


def _routes(name: str) -> set[str]:
    return {
        f"{event['Properties']['Method']} {event['Properties']['Path']}"
        for event in functions()[name]["Events"].values()
        if event["Type"] == "HttpApi"
    }


PUSHES, PULLS, OTHERS = range(3)
"""Places in RequestRates."""


def _limit(place: int) -> dict[str, Any]:
    rate = part(place, "RequestRates")
    return {"ThrottlingRateLimit": rate, "ThrottlingBurstLimit": rate}


# --- load -----------------------------------------------------------------------------------------


def test_push_and_pull_routes_have_their_own_rate_limits_and_others_the_default() -> None:
    (stage,) = [
        stage
        for stage in made("AWS::ApiGatewayV2::Stage").values()
        if stage["ApiId"] == {"Ref": "HttpApi"}
    ]
    pushes = dict.fromkeys(_routes("PushFunction"), _limit(PUSHES))
    pulls = dict.fromkeys(_routes("PullFunction"), _limit(PULLS))
    attachments = {
        route: _limit(PULLS if route.endswith("download") else PUSHES)
        for route in _routes("AttachmentsFunction")
    }

    # A route that does not exist would make the deployment fail.
    assert stage["RouteSettings"] == pushes | pulls | attachments
    assert stage["DefaultRouteSettings"] == _limit(OTHERS)


@pytest.mark.parametrize(
    ("place", "kind"), [(0, "Push"), (1, "Pull"), (2, "Authorise"), (3, "Notify")]
)
def test_concurrency_is_reserved_only_if_configured(place: int, kind: str) -> None:
    reserved, condition = part(place, "Concurrency"), f"Has{kind}Concurrency"

    assert template()["Parameters"]["Concurrency"]["Default"].split(",")[place] == "0"
    assert template()["Conditions"][condition] == {"Fn::Not": [{"Fn::Equals": [reserved, "0"]}]}
    assert functions()[f"{kind}Function"]["ReservedConcurrentExecutions"] == {
        "Fn::If": [condition, reserved, {"Ref": "AWS::NoValue"}]
    }


# --- address --------------------------------------------------------------------------------------


def test_custom_domain_requires_a_certificate() -> None:
    domain = {"DomainName": "app.example.com"}

    assert "CertificateArn" in "".join(refusals(domain))
    assert refusals(domain | {"CertificateArn": "arn:aws:acm:us-east-1:1:certificate/1"}) == []


def test_custom_domain_is_mapped_to_a_declared_stage() -> None:
    (mapping,) = made("AWS::ApiGatewayV2::ApiMapping").values()

    assert mapping["Stage"]["Ref"] in made("AWS::ApiGatewayV2::Stage")


def test_cloudfront_disables_caching_forwards_headers_and_requires_https() -> None:
    config = resources("AWS::CloudFront::Distribution")["Distribution"]["Properties"][
        "DistributionConfig"
    ]
    behaviour = config["DefaultCacheBehavior"]

    assert behaviour["CachePolicyId"] == "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
    assert behaviour["OriginRequestPolicyId"] == "b689b0a8-53d0-40ab-baf2-68738e2966ac"
    assert {"POST", "DELETE", "OPTIONS"} <= set(behaviour["AllowedMethods"])
    assert behaviour["ViewerProtocolPolicy"] == "https-only"
    (origin,) = config["Origins"]
    assert origin["CustomOriginConfig"]["OriginProtocolPolicy"] == "https-only"


def test_web_acl_has_a_rate_limit_and_an_ip_reputation_list() -> None:
    acl = resources("AWS::WAFv2::WebACL")["WebAcl"]["Properties"]
    config = resources("AWS::CloudFront::Distribution")["Distribution"]["Properties"][
        "DistributionConfig"
    ]
    limit, known = (rule["Statement"] for rule in acl["Rules"])

    assert acl["Scope"] == "CLOUDFRONT"
    assert limit["RateBasedStatement"]["Limit"] == {"Ref": "FrontRequestsPer5Minutes"}
    group = known["ManagedRuleGroupStatement"]["Name"]
    assert group == "AWSManagedRulesAmazonIpReputationList"
    assert config["WebACLId"]["Fn::If"][0] == "MakesWebAcl"


def test_http_url_output_is_the_address_in_use() -> None:
    value = template()["Outputs"]["HttpUrl"]["Value"]["Fn::If"]

    assert value[:2] == ["HasDomain", {"Fn::Sub": "https://${DomainName}"}]
    assert value[2]["Fn::If"][0] == "HasFront"
    assert value[2]["Fn::If"][2] == {"Fn::GetAtt": ["HttpApi", "ApiEndpoint"]}
