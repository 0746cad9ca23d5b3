"""Snakemake's jobs as Kubernetes' jobs, by kubectl; see config.yaml beside it. Untested, as that is.

    job.py submit --image I --claim NAME:PATH --node LABEL=VALUE --gpus N --minutes M SCRIPT
    job.py status NAME

A pod of ours is never placed beside another of ours on one node, and a pod that fails is not
started again: the pipeline says what failed, and the same command again measures what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

OURS = {"app": "siliconprof"}


def manifest(asked: argparse.Namespace) -> dict[str, Any]:
    """A Job that runs a script of this folder once; fields as in Kubernetes' API, batch/v1."""
    claim, _, path = asked.claim.partition(":")
    label, _, value = asked.node.partition("=")
    # A GPU is handed out whole, and only to who asks for it in `limits`.
    limits = {"nvidia.com/gpu": asked.gpus} if asked.gpus else {}
    alone = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": OURS}}
    pod = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 60 * asked.minutes,  # of the pod: a Job's counts waiting as well
        "nodeSelector": {label: value},
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}] if asked.gpus else [],
        "containers": [
            {
                "name": "cell",
                "image": asked.image,
                "command": ["/bin/sh", os.path.abspath(asked.script)],
                "workingDir": os.getcwd(),
                "resources": {"limits": limits},
                "volumeMounts": [{"name": "checkout", "mountPath": path}],
            }
        ],
        "volumes": [{"name": "checkout", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "siliconprof-", "labels": OURS},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": OURS}, "spec": pod}},
    }


def kubectl(namespace: str, *arguments: str, given: str | None = None) -> str:
    """What kubectl answers; where it fails, it has said why and so does this."""
    command = ["kubectl", "--namespace", namespace, *arguments]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def state(job: dict[str, Any]) -> str:
    """The plug-in's word for how a job is doing."""
    conditions = job.get("status", {}).get("conditions") or []
    ended = {found["type"] for found in conditions if found["status"] == "True"}
    return "success" if "Complete" in ended else "failed" if "Failed" in ended else "running"


def main() -> None:
    """Submit a script and print its job's name, or print how a job is doing."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    submit, status = verbs.add_parser("submit"), verbs.add_parser("status")
    for verb in (submit, status):
        verb.add_argument("--namespace", default="default")
    for name in ("--image", "--claim", "--node"):
        submit.add_argument(name, required=True)
    submit.add_argument("--gpus", type=int, default=0)
    submit.add_argument("--minutes", type=int, required=True)
    submit.add_argument("script")
    status.add_argument("name")
    asked = parser.parse_args()
    if asked.verb == "status":
        answer = kubectl(asked.namespace, "get", "job", asked.name, "--output", "json")
        print(state(json.loads(answer)))
        return
    given = json.dumps(manifest(asked))
    answer = kubectl(asked.namespace, "create", "-f", "-", "--output", "json", given=given)
    print(json.loads(answer)["metadata"]["name"])


if __name__ == "__main__":
    main()
