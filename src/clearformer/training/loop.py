"""Training, from a configuration to a trained model in its run's folder.

`train` prepares a run, and `Training.run` is the loop: step, log, evaluate, sample, save. The step itself is in
`step.py`, evaluations in `evaluator.py`, checkpoints in `store/checkpoint_store.py`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from clearformer.device import deterministic_kernels, memory_errors, resolve_device, synchronize
from clearformer.errors import (
    ClearformerError,
    ConfigError,
    DataError,
    DiskError,
    Interrupted,
    NonFiniteError,
    TokenizerError,
)
from clearformer.model import Transformer
from clearformer.resources import free_cores
from clearformer.threads import FixedThreads, Threads, ThreadsByLoad
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.evaluator import Evaluator
from clearformer.training.limits import (
    SECONDS_TO_REPORT,
    SECONDS_TO_WRITE,
    Pace,
    WallClock,
    check_not_past_its_end,
    is_due,
    is_finished,
    is_out_of_patience,
)
from clearformer.training.nonfinite import NonFiniteValueError, weights_are_finite
from clearformer.training.processes.distributed import Processes
from clearformer.training.processes.interrupts import Interrupts, StoppedError
from clearformer.training.reporting.loggers import summary_writer_type
from clearformer.training.reporting.report import Reporter
from clearformer.training.reporting.run_log import RunLog
from clearformer.training.setup import (
    check_not_moved,
    open_task,
    resumed_config,
    shared_config,
    torch_as_usual,
)
from clearformer.training.step import StepResult, TrainStep
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.checkpoint_store import CheckpointStore
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.store.lock import one_writer
from clearformer.training.store.pretrained import load_pretrained, pretrained_tokenizer
from clearformer.training.store.snapshots import FEWEST, SnapshotStore, snapshot_bytes, steps_within
from clearformer.training.store.state import TrainState
from clearformer.training.tasks import EvaluationResult, Task, make_task
from clearformer.training.tasks.reports import TrainingReport

SAMPLE_SHARE = 0.03  # the most of `train.max_wall_seconds` for the sample at the end
LESS_MEMORY = (
    "raise train.grad_accum_steps to split the step into smaller parts that need less memory (see "
    "`clearformer plan`)"
)
ONE_FOLDER = (
    "put the folder of runs (CLEARFORMER_RUNS) on a disk that all machines share, and give all of them the same "
    "command"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The result of a run: the model to use, its progress, and its evaluation on the held-out data."""

    model: Transformer
    task: Task
    progress: Progress
    evaluation: EvaluationResult | None

    def report(self, run: str, preset: str | None) -> TrainingReport:
        """Return the run's figures, a sample and the commands to try next.

        Args:
            run: The run's name, as typed in a shell.
            preset: The preset that the run began with; None where that is not known.
        """
        return TrainingReport(
            () if self.evaluation is None else self.task.figures(self.evaluation),
            self.task.final_sample(self.model),
            self.task.next_commands(run, preset),
        )


def train(
    config: RunConfig,
    folder: RunFolder,
    reporter: Reporter,
    resume: bool = False,
    preset: str | None = None,
    began: float | None = None,
    headline: str = "",
) -> TrainResult:
    """Train a model with the settings of `config`, keeping everything in `folder`.

    Args:
        config: The run's configuration. For a resumed run it must equal the folder's, except in what may change.
        folder: Where the run is kept. A new run makes the folder; a resumed one starts from its newest whole
            checkpoint, or from the beginning if it has none. No other process may write to it until the run ends.
        reporter: Receives messages, metrics and samples.
        resume: Whether to resume the folder's run.
        preset: The preset that a new run began with, for its env.json; None if it began without one.
        began: When the command began, by `time.perf_counter`, for `train.max_wall_seconds`; None is now.
        headline: The first message to the reporter, once the data are prepared and nothing is refused any more.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the step was finished and saved.
        RunInUseError: another process trains the run.
        RunError: a new run's folder already holds a run.
        NonFiniteError: a loss or gradient was not finite; the state before it was saved.
        DiskError: the folder cannot be written; earlier checkpoints are whole.
        CheckpointError: all checkpoints are damaged.
        DeviceError: the device's memory is full; earlier checkpoints are whole.
        DataError, ConfigError: the data and the configuration do not fit each other, or not the run to resume.
        ProcessesError: another of torchrun's processes has ended, or has other data or another folder.
    """
    clock = WallClock(time.perf_counter() if began is None else began)
    device = resolve_device(config.train.device)
    processes = Processes.join(device)
    if config.train.tensorboard:
        summary_writer_type()  # so that a missing package is reported before the run begins
    only_writer = one_writer(folder.path) if processes.is_main else nullcontext()
    with torch_as_usual(device), only_writer as hold:
        processes.check_same("the run", "resumed" if resume else "new", ONE_FOLDER)
        if resume:
            config = shared_config(resumed_config(folder.read_config(), config), processes)
            task = resumed_task(config, folder, processes, reporter)
        else:
            config = shared_config(config, processes)
            if processes.is_main:  # which may have taken the next free name, told to no other process
                folder.check_no_run()
            tokenizer = pretrained_tokenizer(config)
            task, config = open_task(config, device, processes, tokenizer, reporter.preparing, clock.seconds)
        processes.check_same("SHA-256 of the data", task.data_sha256, "give all machines the same files")
        training = Training(config, folder, task, device, processes, reporter, clock)
        with training.log.ended():
            if not resume:
                training.log.reporter.opening(config)  # a failure here comes before anything is written
            if headline:
                training.log.reporter.say(headline)
            if resume:
                training.resume()
            else:
                training.start(preset)
            training.begin_alike()
            with Interrupts() as interrupts, memory_errors(LESS_MEMORY):
                training.run(interrupts, hold.check if hold else None)
    return TrainResult(training.weights_to_use, task, training.progress, training.evaluation)


def resumed_task(config: RunConfig, folder: RunFolder, processes: Processes, reporter: Reporter) -> Task:
    """Return the task of a run to resume, after checking that its data are those that the run began on.

    Raises:
        DataError: they are others, or no longer there.
        RunError: the run was imported, and began on no data that are known.
    """
    folder.trained_on()
    check_not_moved(config.data)
    tokenizer = folder.read_tokenizer(config.model.vocab_size)
    try:
        with processes.first_here_first():
            task = make_task(config, tokenizer, reporter.preparing)
    except TokenizerError as error:
        raise DataError(f"these are not the data that {folder.path} was trained on: {error}") from None
    folder.check_same_data(task.data_sha256, config.data, task.n_train_tokens)
    return task


class Training:
    """A run under way: its parts, its state and its progress."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        task: Task,
        device: torch.device,
        processes: Processes,
        reporter: Reporter,
        clock: WallClock | None = None,
    ) -> None:
        task.check_divides(processes.count * config.train.grad_accum_steps)
        task.check_measurable()
        if config.train.patience is not None and not task.n_held_out:
            raise ConfigError(
                "train.patience: there are no held-out data to stop by; hold some out, or remove it"
            )
        self.config, self.folder, self.task = config, folder, task
        self.device, self.processes = device, processes
        self.clock = clock or WallClock(time.perf_counter())
        self.pace = Pace()
        self.log = RunLog(reporter if processes.is_main else Reporter())
        self.state = TrainState.build(config, device)
        self.train_step = TrainStep(config, task, self.state, device, processes)
        may_change = device.type == "cpu" and not config.train.deterministic
        self.threads: Threads = ThreadsByLoad(self.log.reporter.say) if may_change else FixedThreads()
        self.evaluator = Evaluator(config.train, task)
        self.store = CheckpointStore(folder, config.train.keep_last, processes, config.train.checkpoint_every)
        steps = steps_within(self.model, config.train.snapshot_megabytes)
        self.snapshots = SnapshotStore(folder, steps, processes)
        self.store.snapshots = self.snapshots
        self.progress = Progress()
        self.evaluation: EvaluationResult | None = None
        self.interrupts = Interrupts()
        self.seconds_of_sample = 0.0  # at the end, for `train.max_wall_seconds`
        self.shared_signal = 0  # a signal that any of the processes had received when the step ended

    @property
    def settings(self) -> TrainConfig:
        return self.config.train

    @property
    def model(self) -> Transformer:
        """The model that is trained."""
        return self.state.model

    @property
    def weights_to_use(self) -> Transformer:
        """The model that is evaluated and saved: the moving average, where there is one."""
        return self.state.weights_to_use

    def kernels(self) -> AbstractContextManager[object]:
        """Return a context of deterministic kernels if the run asks for them, and always on a CPU: no slower there."""
        is_wanted = self.settings.deterministic or self.device.type == "cpu"
        compiled = self.settings.compile is True
        return deterministic_kernels(self.device, compiled) if is_wanted else nullcontext()

    # --- the course of a run --------------------------------------------------------------------------------

    def start(self, preset: str | None = None) -> None:
        """Set the first weights of a new run and make its folder; `preset` is recorded there."""
        pretrained = self.set_first_weights()
        self.report_warmup()
        self.report_patience()
        if self.processes.is_main:
            task = self.task
            self.folder.create(
                self.config, task.tokenizer, task.data_sha256, preset, task.n_train_tokens, pretrained
            )

    def resume(self) -> None:
        """Restore the newest whole checkpoint, or start from the first weights if there is none.

        Raises:
            ConfigError: the run has taken more steps than `train.max_steps` already.
        """
        progress = self.store.restore(self.state)
        if progress is None:
            self.set_first_weights(self.folder.pretrained())
            self.log.reporter.say(f"no checkpoint in {self.folder.checkpoints}: starting from step 0")
        else:
            check_not_past_its_end(self.settings, progress)
            if self.settings.max_wall_seconds is not None:
                # The count stood still while the run had no such limit.
                least = progress.wall_before + progress.seconds
                progress = replace(progress, wall_seconds=max(progress.wall_seconds, least))
            self.progress = self.evaluator.remeasure_best(
                progress, self.weights_to_use, self.folder, self.log.reporter
            )
            self.clock = replace(self.clock, earlier=progress.wall_seconds)
            self.log.reporter.say(f"resuming from step {progress.step}")
        if self.processes.is_main:
            self.folder.change_config(self.config)
            self.folder.record_processes(self.processes.count)
            if progress is not None:
                self.store.tidy(self.progress)

    def begin_alike(self) -> None:
        """Set the weights of all processes, and their best loss, to the first one's.

        By that loss they agree on the end by `train.patience`; processors may differ in the last bits of one measured
        anew.

        Raises:
            ProcessesError: they do not go on from the same step, as where machines have folders of their own.
        """
        progress = self.progress
        self.processes.check_same("the step to go on from", str(progress.step), ONE_FOLDER)
        self.processes.check_same("the best step so far", str(progress.best_step), ONE_FOLDER)
        if progress.best_val_loss is not None:
            self.progress = replace(progress, best_val_loss=self.processes.broadcast(progress.best_val_loss))
        self.processes.broadcast_tensors(self.state.all_weights())

    def set_first_weights(self, began_with: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Load the weights of `train.pretrained`, if it is set; otherwise they stay as drawn from the seed.

        Args:
            began_with: Which weights the run began with; by default the newest.

        Returns:
            The same of the weights that were loaded; None if there are none.
        """
        if self.settings.pretrained is None:
            return None
        run = Path(self.settings.pretrained)
        loaded = load_pretrained(self.model, run, self.log.reporter, began_with)
        self.state.restart_average()
        return loaded

    def report_warmup(self) -> None:
        """Report a warm-up that the run ends in, as when a preset's number of steps is cut down."""
        if self.settings.ends_in_warmup:
            self.log.reporter.say(
                f"the learning rate never reaches train.lr: train.max_steps={self.settings.max_steps} is within "
                f"train.warmup_steps={self.settings.warmup_steps}"
            )

    def run(self, interrupts: Interrupts, check_hold: Callable[[], None] | None = None) -> None:
        """Take steps until the run ends, with logs, evaluations, samples and checkpoints where they are due.

        Args:
            interrupts: The signals received so far.
            check_hold: Called after each step; raises if another process has taken the run over.
        """
        self.interrupts = interrupts
        with self.store, self.snapshots, self.kernels(), self.threads:
            if self.processes.is_main:
                self.store.records = self.log.open(self.config, self.folder, self.progress)
            self.begin_snapshots()
            self.prepare_steps()
            self.end_if_signalled()
            self.begin_steps()
            self.log.begin(self.config, self.progress)
            if self.has_missed_evaluation():
                self.make_up_evaluation()
                self.end_if_signalled()
            while not self.finished():
                result = self.step()
                line = self.due_line(result)
                if check_hold:
                    check_hold()
                self.log.took(result)
                if self.is_due(self.settings.eval_every) or self.is_due(self.settings.checkpoint_every):
                    line = line or self.log.describe(self.progress, result)
                    with self.saved_if_it_fails(line):
                        line |= self.evaluate_unless_stopped()
                self.log.step(self.progress, line)
                self.snapshots.save(self.state, self.progress)
                self.sample()
                stop = self.signal_to_end()
                if stop or self.is_due(self.settings.checkpoint_every):
                    self.save()
                if stop:
                    self.raise_interrupted(stop)
                self.store.check()
            if self.evaluation is None:
                self.make_up_evaluation()
            self.report_end_by_patience()
        self.end_if_signalled()  # while the end was evaluated or saved: whoever sent the signal waits

    def report_patience(self) -> None:
        """Report how often `train.patience` counts, as the run may end before it has counted far enough."""
        train, n_all = self.settings, self.task.n_held_out
        if train.patience is not None:
            n = self.evaluator.rows_with_checkpoint or n_all
            self.log.reporter.say(
                f"train.patience={train.patience} counts a checkpoint every {train.checkpoint_every:,} steps "
                f"(train.checkpoint_every), compared by {n:,} of {n_all:,} held-out rows"
            )

    def report_end_by_patience(self) -> None:
        """Report that the run ended by `train.patience`, and where its best weights are."""
        progress = self.progress
        if is_out_of_patience(self.settings, progress):
            part = (
                "" if progress.best_n_rows == self.task.n_held_out else " on the part (~) that compares them"
            )
            self.log.reporter.say(
                f"train.patience={self.settings.patience}: no checkpoint after step {progress.best_step} has a lower "
                f"held-out loss{part}, {progress.best_val_loss:.4f} there and {progress.val_loss:.4f} now; open that "
                "one with --checkpoint best"
            )

    def prepare_steps(self) -> None:
        """Set up memory and compile the step if asked; this does not count as training time."""
        compiled = self.settings.compile is True and not self.finished()
        self.train_step.prepare(self.log.reporter, compiled, lambda: self.interrupts.received is not None)
        if compiled:
            free_cores().forget()

    def begin_steps(self) -> None:
        """For `train.max_wall_seconds`: measure how long the end of the run takes, and count the time used so far.

        Raises:
            NonFiniteError: the held-out loss is not finite before the first step.
        """
        if self.settings.max_wall_seconds is None or self.finished():
            return
        if self.processes.is_main:
            self.task.prepare_report()
        with self.nonfinite_ends_the_run(self.progress.step):
            self.evaluator.measure(self.weights_to_use)
        if self.processes.is_main:  # whose clock counts, and which alone draws the sample
            longest = SAMPLE_SHARE * self.settings.max_wall_seconds
            self.seconds_of_sample = self.task.fit_final_sample(self.weights_to_use, longest)
        if self.progress.step == 0:
            before = self.processes.broadcast(self.clock.seconds())
            self.progress = replace(self.progress, wall_seconds=before, wall_before=before)
            self.report_late_start(self.settings.max_wall_seconds)

    def report_late_start(self, most: float) -> None:
        """Report it if no time is left before the first step, which is taken all the same."""
        before, after = self.progress.wall_before, self.wall_clock()["wall_after"]
        if before + after >= most:
            self.log.reporter.say(
                f"train.max_wall_seconds={most:g} is over after one step: the start took {before:.1f} s, and the end "
                f"takes about {after:.1f} s; give more time"
            )

    def finished(self) -> bool:
        return is_finished(self.settings, self.progress)

    def is_due(self, every: int | None) -> bool:
        """Whether something that happens every `every` steps, and after the last step, is due now."""
        return is_due(self.settings, self.progress, every)

    # --- steps ----------------------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Take one step and update the progress; of several processes, the first one's clock counts."""
        step = self.progress.step
        self.threads.adapt(step)
        start = time.perf_counter()
        with self.nonfinite_ends_the_run(step + 1):
            result = self.train_step.take(self.progress)
        synchronize(self.device)
        took = time.perf_counter() - start
        self.pace.took(took)
        clocks = {"seconds": self.progress.seconds + took, **self.wall_clock()}
        clocks, self.shared_signal = self.processes.end_step(clocks, self.interrupts.received or 0)
        tokens = self.progress.tokens + self.task.n_tokens(step)
        self.progress = replace(self.progress, step=step + 1, tokens=tokens, val_loss=None, **clocks)
        return result

    def wall_clock(self) -> dict[str, float]:
        """Return the wall-clock seconds so far and those expected after the last step; empty without such a limit."""
        if self.settings.max_wall_seconds is None:
            return {}
        so_far, slowdown = self.clock.seconds(), self.pace.slowdown
        ending = SECONDS_TO_REPORT + max(0.0, self.store.writer.seconds - SECONDS_TO_WRITE)
        after = (self.evaluator.seconds_at_the_end + self.seconds_of_sample + ending) * slowdown
        due = self.evaluator.seconds_after(self.progress.step + 1) * slowdown
        if so_far + due + after > self.settings.max_wall_seconds:  # with that evaluation the time is over
            so_far = max(so_far, self.settings.max_wall_seconds - after)
        return {"wall_seconds": so_far, "wall_after": after}

    def signal_to_end(self) -> int:
        """Return the signal that ends the run now, or 0; with several processes, the one that they all agreed on."""
        return self.shared_signal if self.processes.count > 1 else self.interrupts.received or 0

    def end_if_signalled(self) -> None:
        """Raise Interrupted if a signal came between steps; several processes agree on one after a step alone."""
        if self.processes.count == 1 and (stop := self.signal_to_end()):
            self.raise_interrupted(stop)

    def raise_interrupted(self, signal_number: int) -> NoReturn:
        """Wait until everything is saved, then raise Interrupted."""
        self.store.wait()
        self.processes.wait_for_all()  # if one ended early, torchrun would end the one that is still writing
        raise Interrupted(
            f"stopped at step {self.progress.step}; progress is saved in {self.folder.path}",
            signal_number,
        )

    # --- logs -----------------------------------------------------------------------------------------------

    def due_line(self, result: StepResult) -> dict[str, Any]:
        """Return the step's line in metrics.jsonl if `train.log_every` asks for one, else an empty one."""
        if not self.is_due(self.settings.log_every):
            return {}
        line = self.log.describe(self.progress, result)
        self.log.last = self.progress
        return line

    def sample(self) -> None:
        """Report a sample of the model so far, if one is due.

        Raises:
            NonFiniteError: the sample's scores are not finite: the last update has spoilt the weights.
        """
        every = self.settings.sample_every
        if every and self.progress.step % every == 0:
            with self.saved_if_it_fails():
                try:
                    sampled = self.task.sample(self.weights_to_use)
                except NonFiniteError:
                    self.raise_nonfinite(self.progress.step, "score of a sample")
                self.log.reporter.sampled(sampled)

    # --- evaluations ----------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Evaluate on as much of the held-out split as is due, and return the values for the metrics line.

        Checkpoints are always compared by the same rows, even at the end, when the whole split is read. If those rows
        have nothing to predict, there is no loss.

        Raises:
            NonFiniteError: the held-out loss is not finite: the last update has spoilt the weights.
        """
        if not self.task.n_held_out:
            return {}
        evaluator, model = self.evaluator, self.weights_to_use
        with self.nonfinite_ends_the_run(self.progress.step):
            is_compared = self.is_due(self.settings.checkpoint_every)
            n_rows = evaluator.rows_with_checkpoint if is_compared else evaluator.rows_between_checkpoints
            if evaluator.is_timed(n_rows):
                self.pace.evaluation_timed()
            if not is_compared:
                return evaluator.evaluate(model, n_rows).line
            if self.finished():
                evaluation, compared = evaluator.evaluate_at_the_end(model)
            else:
                evaluation = compared = evaluator.evaluate(model, n_rows)
            if self.progress.val_loss is None:  # a finished run that is resumed was compared before
                loss = compared.loss if compared.loss is None else self.processes.broadcast(compared.loss)
                self.progress = evaluator.with_best(replace(self.progress, val_loss=loss))
            if is_out_of_patience(self.settings, self.progress) and not evaluation.is_whole:
                evaluation = evaluator.evaluate(model, None)
        if evaluation.is_whole:
            self.evaluation = evaluation.result
        return evaluation.line

    def evaluate_unless_stopped(self) -> dict[str, float]:
        """Evaluate, or return nothing if a signal comes before the end of it: the resumed run makes it up.

        Several processes evaluate to the end, since they agree on a signal at the end of a step.
        """
        if self.processes.count > 1:
            return self.evaluate()
        try:
            with self.interrupts.at_once():
                return self.evaluate()
        except StoppedError:
            return {}

    def has_missed_evaluation(self) -> bool:
        """Whether the run goes on at a step whose evaluation was due but failed or was stopped.

        A checkpoint tells it where one was due, otherwise the step's line.
        """
        if self.finished() or self.progress.step == 0:
            return False
        if self.is_due(self.settings.checkpoint_every):
            return self.task.n_held_out > 0 and self.progress.val_loss is None
        if not self.is_due(self.settings.eval_every):
            return False
        *_, last = read_metrics(self.folder.metrics_file) or [{}]
        lacks = last.get("step") == self.progress.step and last.get("val_loss") is None
        return bool(self.processes.broadcast(float(lacks)))  # the first process writes the lines

    def make_up_evaluation(self) -> None:
        """Evaluate the step at which the run was resumed, and record it if its evaluation had failed.

        The line in metrics.jsonl repeats what the last one says of the training. The checkpoint is given the loss, as
        no later one may come that says which was the best.
        """
        before = self.progress
        line, progress = self.evaluate_unless_stopped(), self.progress
        if progress != before:
            self.store.amend(progress)
        *_, last = read_metrics(self.folder.metrics_file) or [{}]
        is_recorded = last.get("step") == progress.step and last.get("val_loss") is not None
        if line and last and not is_recorded:
            reached = {"step": progress.step, "tokens": progress.tokens, "seconds": progress.seconds}
            self.log.step(progress, last | reached | line)

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the present state, called in all processes; a thread writes it while training goes on.

        Raises:
            NonFiniteError: the last update has spoilt the weights.
            DiskError: the previous checkpoint could not be written.
        """
        self.check_update()
        self.store.save(self.state, self.progress)

    def begin_snapshots(self) -> None:
        """Save the first weights; in a resumed run, delete the snapshots that it will make again."""
        budget = self.settings.snapshot_megabytes
        if budget is not None and steps_within(self.model, budget) is None:
            each = snapshot_bytes(self.model.state_dict()) / 1e6
            self.log.reporter.say(
                f"keeping no snapshots: fewer than {FEWEST} of {each:,.1f} MB each fit in "
                f"train.snapshot_megabytes={budget:g}"
            )
        self.snapshots.go_on_from(self.progress.step)
        if self.progress.step == 0:
            self.snapshots.save(self.state, self.progress)

    def save_alone(self) -> None:
        """Save the present state without waiting for the other processes, and wait until it is written."""
        self.check_update()
        if self.processes.is_main:
            self.store.save_alone(self.state, self.progress)
        self.store.wait()

    def check_update(self) -> None:
        """Raise NonFiniteError if the last update has spoilt the weights."""
        if not weights_are_finite(self.model):
            self.raise_nonfinite(self.progress.step, "update")

    @contextmanager
    def saved_if_it_fails(self, line: dict[str, Any] | None = None) -> Iterator[None]:
        """Save the state and the step's metrics line if the `with` block raises an unforeseen error."""
        try:
            yield
        except (NonFiniteError, DiskError):  # already saved, or nothing can be saved
            raise
        except Exception:
            try:
                self.log.write(line or {})
                self.save_alone()
            except ClearformerError as error:
                logger.warning("%s", error)  # the first error is the one to raise
            raise

    @contextmanager
    def nonfinite_ends_the_run(self, step: int) -> Iterator[None]:
        """Save the last good state and raise NonFiniteError if the `with` block meets a value that is not finite."""
        try:
            yield
        except NonFiniteValueError as error:
            self.raise_nonfinite(step, error.what)

    def raise_nonfinite(self, step: int, what: str) -> NoReturn:
        """Raise NonFiniteError, after saving the present state if its weights are finite."""
        self.model.zero_grad()
        is_good = weights_are_finite(self.model)
        if is_good:
            self.save()
        self.store.wait()
        saved = "no checkpoint has been written"
        if is_good:
            saved = f"the state before it is saved as step {self.progress.step}"
        elif (newest := self.store.newest_step()) is not None:
            saved = f"the last good state is the checkpoint of step {newest}"
        where = self.first_nonfinite()
        if is_good:
            self.processes.wait_for_all()  # see `raise_interrupted`; they have all met in `save`
        raise NonFiniteError(
            f"step {step}: the {what} is not finite; first in {where}; {saved} in "
            f"{self.folder.path}; try a new run with a lower train.lr or train.grad_clip_norm",
            step,
        ) from None

    def first_nonfinite(self) -> str:
        """Return where the next step first meets a value that is not finite, in words."""
        try:
            return self.train_step.find_nonfinite(self.progress.step) or "no single module"
        except Exception as error:  # such as memory that is too small for the step uncompiled
            return f"a place that could not be looked for ({type(error).__name__})"
