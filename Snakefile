from snakemake.utils import min_version

min_version("9.27.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/render.smk"


localrules:
    report,
    measured,
    prepare,
    prepare_speech,
    prepare_images,
    matrix,
    reference,
    retry,
    aggregate,
    analyse,
    draw,
    render,
    figures,


rule report:
    """Both pages, and every record of this run's hosts behind it."""
    default_target: True
    input:
        "results/report.html",
        "results/study.html",
        FLOW.records,


rule measured:
    """Every record of this run's hosts, and no page."""
    input:
        FLOW.records,
        FLOW.retried,


onstart:
    snakefile.started(workflow.dag_settings, workflow.dag)


onerror:
    snakefile.failed()


onsuccess:
    print(FLOW.closing_lines(workflow.dag_settings.targets))
