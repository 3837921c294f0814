#!/usr/bin/env python3
"""The files that start gradsync elsewhere, without starting it: deploy/compose.yaml and deploy/kubernetes/. Fails on

* a member that Kubernetes requires and that is not there, or one that it does not know, of the kinds that are used;
* a selector that selects nothing, a port, a volume or a claim that is named and not there;
* a flag or variable that the program does not take as it stands there (asked with --print-config).

    deployment.py [--schemas] SOURCE_DIR BIN_DIR
Skips (77) without PyYAML; --schemas fails where nobody has installed those of Kubernetes.
"""
import json
import os
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("SKIP deployment: no python3-yaml")
    sys.exit(77)

# kind → (apiVersion, members of spec: required, others that are known)
KINDS = {
    "Service": ("v1", {"selector", "ports"}, {"clusterIP", "type"}),
    "PersistentVolumeClaim": ("v1", {"accessModes", "resources"}, {"storageClassName", "volumeMode"}),
    "StatefulSet": ("apps/v1", {"serviceName", "selector", "template"}, {"replicas", "podManagementPolicy", "volumeClaimTemplates", "updateStrategy"}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"podSelector"}, {"policyTypes", "ingress", "egress"}),
}
POD = ({"containers"}, {"securityContext", "terminationGracePeriodSeconds", "affinity", "volumes", "automountServiceAccountToken"})
CONTAINER = ({"name", "image"}, {"args", "env", "ports", "livenessProbe", "readinessProbe", "resources", "securityContext", "volumeMounts"})
MODES = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}
OUTSIDE = {"gradsync-data"}  # claims that whoever deploys has
SECRETS = {"gradsync-tls", "gradsync-worker-key", "gradsync-job-secrets"}  # and secrets, which the head of the file makes
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")

findings = []


def expect(holds, where, what):
    if not holds:
        findings.append(f"{where}: {what}")
    return holds


def members(where, value, required, known):
    if not expect(isinstance(value, dict), where, "is no object"):
        return
    for name in sorted(required - set(value)):
        expect(False, where, f"{name} is missing")
    for name in sorted(set(value) - required - known):
        expect(False, where, f"{name} is not known")


def run_program(where, bin_dir, program, args, variables):
    """Whether it takes these settings, and what they come to."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("GRADSYNC_")}
    done = subprocess.run([os.path.join(bin_dir, program), *args, "--print-config"], env={**env, **variables}, capture_output=True, text=True,
                          timeout=60, check=False)
    expect(done.returncode == 0, where, f"{program} does not take this: {done.stderr.strip()[-300:]}")
    for name, text in variables.items():
        expect(f'"{text}"' in done.stdout, where, f"{program} takes no notice of {name}")


def check_container(where, container, volumes, bin_dir):
    members(where, container, *CONTAINER)
    ports = {port.get("name") for port in container.get("ports", [])}
    for probe in ("livenessProbe", "readinessProbe"):
        if probe in container:
            expect(container[probe]["httpGet"]["port"] in ports, where, f"{probe} asks a port that is not there")
            expect((container[probe]["httpGet"].get("scheme") == "HTTPS") == ("--tls-cert" in container["args"]), where, f"{probe} speaks another protocol")
    for mount in container.get("volumeMounts", []):
        members(f"{where}.volumeMounts", mount, {"name", "mountPath"}, {"readOnly", "subPath"})
        expect(mount["name"] in volumes, where, f"volume {mount['name']} is not there")
    variables = {}
    for variable in container.get("env", []):
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        expect(path in ("metadata.name", "status.podIP") or "value" in variable, where, f"{variable['name']} comes from nowhere")
        variables[variable["name"]] = variable.get("value") or {"metadata.name": "gradsync-worker-0", "status.podIP": "192.0.2.7"}.get(path, "")
    for part in ("readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities"):
        expect(part in container.get("securityContext", {}), where, f"securityContext says nothing of {part}")
    run_program(where, bin_dir, container["image"], container.get("args", []), variables)
    return ports


def check_kubernetes(path, bin_dir):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    objects, head = list(yaml.safe_load_all(text)), text[:text.index("apiVersion")]
    expect("--insecure" not in text, path, "has an exception")
    claims = {one["metadata"]["name"] for one in objects if one["kind"] == "PersistentVolumeClaim"} | OUTSIDE
    services = {one["metadata"]["name"] for one in objects if one["kind"] == "Service"}
    pods = []  # (labels, ports)
    seen = set()
    for one in objects:
        members("object", one, {"apiVersion", "kind", "metadata", "spec"}, set())
        kind, name, spec = one["kind"], one["metadata"]["name"], one["spec"]
        where = f"{kind} {name}"
        if not expect(kind in KINDS, where, "is of a kind that is not known here"):
            continue
        expect((kind, name) not in seen, where, "is there twice")
        seen.add((kind, name))
        expect(NAME.match(name), where, "is no name")
        expect(one["apiVersion"] == KINDS[kind][0], where, f"is of {KINDS[kind][0]}")
        members(where, spec, *KINDS[kind][1:])
        if kind == "PersistentVolumeClaim":
            expect(set(spec["accessModes"]) <= MODES and "storage" in spec["resources"].get("requests", {}), where, "asks for no storage")
        if kind != "StatefulSet":
            continue
        labels, pod = spec["template"]["metadata"]["labels"], spec["template"]["spec"]
        members(f"{where} pod", pod, *POD)
        expect(spec["selector"]["matchLabels"].items() <= labels.items(), where, "does not select its own pods")
        expect(spec["serviceName"] in services, where, "its service is not there")
        volumes = {volume["name"] for volume in pod.get("volumes", [])} | {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        for volume in pod.get("volumes", []):
            secret = volume.get("secret")
            if secret:
                expect(secret["secretName"] in SECRETS and secret["secretName"] in head, where, f"nobody says how secret {secret['secretName']} is made")
                expect(secret.get("defaultMode") == 0o440, where, f"secret {secret['secretName']} is for others than its user")
                continue
            expect(volume["persistentVolumeClaim"]["claimName"] in claims, where, f"claim of volume {volume['name']} is not there")
        for container in pod["containers"]:
            pods.append((labels, check_container(f"{where} {container.get('name')}", container, volumes, bin_dir)))
    # Who is chosen by no policy is open, and by one that says nothing of a direction open in that.
    policies = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    for labels, _ in pods:
        for direction in ("Ingress", "Egress"):
            expect(any(policy["podSelector"]["matchLabels"].items() <= labels.items() and direction in policy["policyTypes"] for policy in policies),
                   f"pods {labels}", f"no policy says anything of {direction}")
    for one in objects:
        where = f"{one['kind']} {one['metadata']['name']}"
        selector = one["spec"].get("selector", {}) if one["kind"] == "Service" else one["spec"].get("podSelector", {}).get("matchLabels")
        if one["kind"] not in ("Service", "NetworkPolicy"):
            continue
        chosen = [ports for labels, ports in pods if selector.items() <= labels.items()]
        expect(chosen, where, "selects nothing")
        for port in one["spec"].get("ports", []):
            target = port.get("targetPort", port["name"])
            expect(all(target in ports for ports in chosen), where, f"port {target} is of no container")


def check_compose(path, bin_dir):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", file.read())
    compose = yaml.safe_load(text)
    expect("--insecure" not in text, "compose", "has an exception")
    expect(sorted(compose["services"]) == ["coordinator", "keys", "worker-1", "worker-2"], "compose", "is no coordinator with two workers and their keys")
    for name, service in compose["services"].items():
        where = f"compose {name}"
        if "entrypoint" not in service:
            run_program(where, bin_dir, service["image"], service["command"], {})
        private = "state:/var/lib/gradsync" in service["volumes"]
        expect(private == (service["image"] == "gradsync-coordinator"), where, "has the coordinator's volume, or the coordinator has not")
        expect(service.get("read_only") and service.get("cap_drop") == ["ALL"], where, "may write its image, or has capabilities")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            expect(source.startswith("/") or source in compose["volumes"], where, f"volume {source} is not there")
    names = [service["command"][service["command"].index("--name") + 1] for service in compose["services"].values() if "--name" in service["command"]]
    expect(len(set(names)) == len(names) == 2, "compose", f"workers are called {json.dumps(names)}")


def check_schemas(path):
    """Against the schemas of Kubernetes itself, where somebody has installed them (pip install kubernetes-validate)."""
    try:
        import kubernetes_validate
    except ImportError:
        expect(not demanded, "schemas", "pip install kubernetes-validate")
        return
    with open(path, encoding="utf-8") as file:
        for one in yaml.safe_load_all(file):
            for version in ("1.25", "1.29", "1.32"):
                try:
                    kubernetes_validate.validate(one, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    expect(False, f"{one['kind']} {one['metadata']['name']}", f"{version}: {error}")


demanded = sys.argv[1] == "--schemas"
if demanded:
    del sys.argv[1]
check_schemas(os.path.join(sys.argv[1], "deploy/kubernetes/gradsync.yaml"))
check_kubernetes(os.path.join(sys.argv[1], "deploy/kubernetes/gradsync.yaml"), sys.argv[2])
check_compose(os.path.join(sys.argv[1], "deploy/compose.yaml"), sys.argv[2])
print("\n".join(findings) or "compose.yaml and kubernetes/gradsync.yaml: nothing found")
sys.exit(1 if findings else 0)
