"""Checks an OpenAPI document with jsonschema: structure, references, schemas, a sample job."""
import json
import os
import sys

import jsonschema

document = json.load(open(sys.argv[1]))
official = "/usr/share/openapi-specification/schemas/v3.0/schema.json"
if os.path.exists(official):
    jsonschema.validate({**document, "openapi": "3.0.3"}, json.load(open(official)))

assert document["openapi"].startswith("3.1"), document["openapi"]
for path, item in document["paths"].items():
    assert path.startswith("/"), path
    for verb, operation in item.items():
        assert verb in ("get", "post", "delete", "put", "patch"), verb
        assert operation["responses"], path
        in_path = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert in_path == [s[1:-1] for s in path.split("/") if s.startswith("{")], path
        for parameter in operation["parameters"]:
            jsonschema.Draft202012Validator.check_schema(parameter["schema"])


def resolve(node):
    """Every reference leads somewhere."""
    if isinstance(node, dict):
        if "$ref" in node:
            assert len(node) == 1, node
            target = document
            for part in node["$ref"].lstrip("#/").split("/"):
                target = target[part]
        for value in node.values():
            resolve(value)
    elif isinstance(node, list):
        for value in node:
            resolve(value)
    else:
        assert node is not None


resolve(document)

operations = {operation["operationId"]: (path, operation) for path, item in document["paths"].items() for operation in item.values()}
reached = set()


def check_links(response, of):
    """A link leads to an operation, and says something that it takes."""
    for name, link in response.get("links", {}).items():
        path, operation = operations[link["operationId"]]
        known = {parameter["name"]: parameter for parameter in operation["parameters"]}
        needed = {key for key, parameter in known.items() if parameter["required"]}
        assert needed <= set(link["parameters"]) <= set(known), (of, name)
        for value in link["parameters"].values():
            assert value.startswith("$response.body#/"), (of, name, value)
        reached.add(link["operationId"])


for name, (path, operation) in operations.items():
    for response in operation["responses"].values():
        check_links(response, name)
check_links(document["components"]["responses"]["Problem"], "Problem")
# Whoever reads the document is led to each route that needs something from an answer.
for name, (path, operation) in operations.items():
    assert "{" not in path or name in reached, f"no link leads to {name}"
for name, schema in document["components"]["schemas"].items():
    jsonschema.Draft202012Validator.check_schema(schema)
job = document["components"]["schemas"]["CreateJobRequest"]
good = {"name": "a", "model": {"kind": "mlp"}, "steps": {"target": 5}}
jsonschema.validate(good, job)
try:
    jsonschema.validate({**good, "steps": {"target": "five"}}, job)
except jsonschema.ValidationError:
    pass
else:
    sys.exit("a step count of 'five' is valid")


def refuses(schema, value, why):
    """What the service refuses is not valid either."""
    if jsonschema.Draft202012Validator(schema).is_valid(value):
        sys.exit(f"{why} is valid")


preview = document["components"]["schemas"]["PreviewPlanRequest"]
one = {"tensors": [{"elements": 4}], "limits_bytes": [16]}
jsonschema.validate(one, preview)
refuses(preview, {**one, "limits_bytes": []}, "a plan without limits")
# A stream is checked as a whole, or an event at a time.
stream = document["paths"]["/v1/jobs/{job}/stream"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
jsonschema.validate("id: 1\ndata: {}\n\n", stream)
jsonschema.validate({"id": "1", "event": "step", "data": "{}"}, stream)
refuses(stream, {"data": {}}, "an event whose data is no text")
(key,) = [parameter["schema"] for parameter in document["paths"]["/v1/jobs"]["post"]["parameters"]
          if parameter["name"] == "Idempotency-Key"]
jsonschema.validate("8e03978e-40d5-43dd-bc93-6894a57f9324", key)
for wrong in ("", "a b", "k\u00e9", "\t", "k" * 256):
    refuses(key, wrong, f"the Idempotency-Key {wrong!r}")
