"""The words in the display of progress: what a run does now, and how far it is."""

from spherefed.engines.activity import CALIBRATION, IDLE, PHASES, TRAINING, Activity
from spherefed.experiment import SITES
from spherefed.runs.jobs import Job, Running


def short_label(job: Job, width: int) -> str:
    """The label with a shorter name, if it is too long: the seed is worth more than the end of the name."""
    room = width - (len(job.label) - len(job.name))
    return job.label if len(job.name) <= room else f"{job.name[: room - 1]}…{job.label[len(job.name) :]}"


def phase_of(running: Running) -> str:
    """What a run does now."""
    activity, experiment = running.activity, running.job.experiment
    if activity.phase == TRAINING:
        return f"round {activity.round + 1}"
    if is_solving(running):
        return "solving and evaluating"
    if activity.phase == IDLE and running.job.trained is not None:  # it takes over the rounds of another run
        return "loading and evaluating"
    if experiment.rounds:
        return PHASES[activity.phase]
    if activity.phase == IDLE:
        return "preparing features"
    return "measuring" if activity.phase == CALIBRATION else PHASES[activity.phase]


def is_solving(running: Running) -> bool:
    """Whether the statistics of all clients have arrived: the server works alone."""
    return running.activity.phase == CALIBRATION and _all_done(running.activity)


def _is_evaluating(running: Running) -> bool:
    """Whether all clients have trained in a round after which the server evaluates the model."""
    activity, experiment = running.activity, running.job.experiment
    done = activity.round + 1
    is_evaluated = done % experiment.evaluate_every == 0 or done == experiment.rounds
    has_test_set = experiment.data.name != SITES and not experiment.data.pooled
    return activity.phase == TRAINING and _all_done(activity) and is_evaluated and has_test_set


def _all_done(activity: Activity) -> bool:
    return activity.clients > 0 and activity.clients_done == activity.clients


def clients_of(running: Running, *, wide: bool) -> str:
    """How many clients are done, as the end of a phase's words; empty if the server works alone."""
    activity = running.activity
    if activity.phase == IDLE or is_solving(running):
        return ""
    if _is_evaluating(running):
        return ": evaluating"
    if wide:
        return f": {activity.clients_done}/{activity.clients} clients"
    return f": {counted(activity.clients_done, activity.clients)}"


def counted(done: int, total: int) -> str:
    """As wide at the end as in the beginning, so that nothing jumps."""
    return f"{done:>{len(str(total))}}/{total}"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock_time(3700.4)
    '1:01:40'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
