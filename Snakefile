from snakemake.utils import min_version

min_version("9.27.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/render.smk"


localrules:
    report,
    matrix,
    aggregate,
    ceilings,
    expected,
    attribution,
    claims,
    render,


rule report:
    """The page, and every record of this host behind it."""
    default_target: True
    input:
        "results/report.html",
        FLOW.records,


onsuccess:
    print("report: results/report.html")
