# What the rules look up: functions of the config, cached; reading them writes nothing. Snakemake
# imports modules from the folder of a Snakefile, so the package of this checkout comes first.
from siliconprof.pipeline.experiment import Experiment, set_environment_of_jobs

EXPERIMENT = Experiment(config, checkpoints, workflow)
set_environment_of_jobs(EXPERIMENT)


wildcard_constraints:
    **EXPERIMENT.patterns,
