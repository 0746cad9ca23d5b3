# cluster: what the nodes of every label are, found on one of them before its cells are known.
#
# in:   what finds it, the device registry, what leads to the node
# out:  results/hosts/{label}.json
#
# Only for runs that are submitted: elsewhere the main process has looked at its own host.

for KIND in FLOW.detecting:

    checkpoint:
        """Find out what a node of this label is, on such a node."""
        name:
            KIND.rule
        input:
            registry="config/devices.yaml",
            schema="workflow/schemas/devices.schema.yaml",
        output:
            f"results/hosts/{KIND.label}.json",
        log:
            f"results/logs/hosts/{KIND.label}.log",
        resources:
            **KIND.resources,
        params:
            label=KIND.label,
            asked=KIND.asked,
        shell:
            r"""
            python -m siliconprof.hosts.cluster_host \
                --label {params.label:q} \
                --registry {input.registry:q} \
                --output {output:q} \
                >{log:q} 2>&1
            """
