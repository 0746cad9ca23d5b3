# What the rules look up: functions of the config, cached; reading them writes nothing. Snakemake
# imports modules from the folder of a Snakefile, so the package of this checkout comes first.
from siliconprof.pipeline.experiment import Experiment

EXPERIMENT = Experiment(config, checkpoints, workflow)


wildcard_constraints:
    **EXPERIMENT.patterns,
