//! The state of a migration.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use paragpu_control::admin::{Figures, Moved};
use paragpu_control::worker::{Route, Step};

use super::departure::Joining;
use super::order::Outcome;
use crate::link::Destination;

/// Time limit from the stop of the first of several sessions to the commit of all, if
/// the order has none.
const TOGETHER: Duration = Duration::from_secs(80);
/// How long a session may map memory that another one has freed, once all are stopped: the call
/// that ends the mapping is queued there, behind work that may use the memory.
const LEAVING: Duration = Duration::from_secs(10);

/// The destination of a session that left.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) route: Route,
    pub(super) until: Instant,
}

/// A migration in progress.
#[derive(Debug)]
pub(super) struct Migration {
    pub(super) console: u64,
    /// Whether the operator ordered the move of this one session.
    pub(super) single: bool,
    /// Those still in progress, by key of the worker.
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) stage: Stage,
    /// What further sessions need to join, if a whole VM moves.
    pub(super) joining: Option<Joining>,
    /// The other daemon to which they move.
    pub(super) to: Option<Destination>,
    /// Why all stay, if no session reports it: the time limit from the stop to the commit
    /// was over, or another session shares memory with them.
    pub(super) why: Option<String>,
    pub(super) over: Vec<Moved>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: u64,
    pub(super) vm: String,
    /// The session of this daemon that continues it.
    pub(super) successor: Option<u64>,
    /// The gate at which it waits for the others, if it does.
    pub(super) step: Option<Step>,
    pub(super) part: Part,
}

/// When a session began, and which gates wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Before the order. All gates wait.
    First,
    /// During pre-copy. All gates but the first wait, which new sessions could delay without end.
    Joined,
    /// After pre-copy, and it has executed no call. No gate waits: it shares nothing yet.
    Late,
}

/// The progress of sessions that move together.
///
/// ```text
///            all are Copied:         all are Stopped:         all are Complete:
///            one byte to `stop`      one byte to `rest`       one byte to `commit`
///   Copying ─────────────► Stopping ──────────────► Stopped ────────────► Committed
///      │ one cannot move      │ one cannot move, or the time is over:
///      │                      │ the other gates close without a byte
///      └──────► Staying ◄─────┴────────────────────────┘
/// ```
///
/// If a member's program ends, the others continue. The migration is complete when
/// no member is left, in any stage. If the daemon dies, its ends of the gates
/// close, and all sessions stay. A session of the VM that begins meanwhile
/// [joins](Part).
#[derive(Debug)]
pub(super) enum Stage {
    /// Each moves on its own, and there are no gates.
    Alone,
    /// Memory is copied while the programs run.
    Copying {
        stop: OwnedFd,
        rest: OwnedFd,
        commit: OwnedFd,
        /// Time limit from the stop to the commit.
        pause: Duration,
    },
    /// The programs stop, one after the other.
    Stopping {
        rest: OwnedFd,
        commit: OwnedFd,
        pause: Pause,
        /// Until when one of them may [leave](LEAVING) memory, if all have stopped before.
        leaving: Option<Instant>,
    },
    /// All are stopped, so shared memory no longer changes, and the rest is sent.
    Stopped { commit: OwnedFd, pause: Pause },
    /// The destination owns the sessions.
    Committed,
    /// The sessions stay here.
    Staying,
}

/// The time limit of the pause, from the stop to the commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    limit: Duration,
    deadline: Instant,
}

impl Stage {
    /// Whether the sessions may still move or stay together.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(
            self,
            Self::Copying { .. } | Self::Stopping { .. } | Self::Stopped { .. }
        )
    }

    /// Gives up because a session cannot move. Before the commit, then none moves.
    pub(super) fn give_up(&mut self) {
        if self.is_undecided() {
            *self = Self::Staying;
        }
    }

    /// The part of a session that begins now. `None` if it stays.
    fn part_of_new(&self) -> Option<Part> {
        match self {
            Self::Copying { .. } => Some(Part::Joined),
            Self::Stopping { .. } | Self::Stopped { .. } | Self::Committed => Some(Part::Late),
            Self::Alone | Self::Staying => None,
        }
    }

    /// The first stage of sessions that move together, with the gates `stop`, `rest` and
    /// `commit`.
    pub(super) fn together([stop, rest, commit]: [OwnedFd; 3], most_pause_ms: Option<u64>) -> Self {
        Self::Copying {
            stop,
            rest,
            commit,
            pause: most_pause_ms.map_or(TOGETHER, Duration::from_millis),
        }
    }

    /// Whether [`advance`](Self::advance) commits.
    pub(super) fn commits(&self, step: Option<Step>) -> bool {
        matches!(self, Self::Stopped { .. }) && step >= Some(Step::Complete)
    }

    /// The next stage, if all members have reached `step`. With `leaves`, one of them still maps
    /// memory that another one has freed. No destination would offer it.
    pub(super) fn advance(self, step: Option<Step>, leaves: bool) -> Self {
        // One byte always fits into an empty pipe.
        let open = |gate: &OwnedFd| matches!(rustix::io::write(gate, &[1]), Ok(1));
        let commits = self.commits(step);
        match self {
            Self::Copying {
                stop,
                rest,
                commit,
                pause,
            } if step >= Some(Step::Copied) => match open(&stop) {
                true => Self::Stopping {
                    rest,
                    commit,
                    pause: Pause {
                        limit: pause,
                        deadline: Instant::now() + pause.min(TOGETHER),
                    },
                    leaving: None,
                },
                false => Self::Staying,
            },
            Self::Stopping {
                rest,
                commit,
                pause,
                leaving,
            } if step >= Some(Step::Stopped) => match leaves {
                true => Self::Stopping {
                    rest,
                    commit,
                    pause,
                    leaving: leaving.or_else(|| Some(Instant::now() + LEAVING)),
                },
                false if open(&rest) => Self::Stopped { commit, pause },
                false => Self::Staying,
            },
            Self::Stopped { commit, .. } if commits => match open(&commit) {
                true => Self::Committed,
                false => Self::Staying,
            },
            waits => waits,
        }
    }

    /// The pause, while it lasts.
    fn pause(&self) -> Option<&Pause> {
        match self {
            Self::Stopping { pause, .. } | Self::Stopped { pause, .. } => Some(pause),
            _ => None,
        }
    }

    /// The deadline for a session to leave memory that another one has freed.
    fn leaving(&self) -> Option<Instant> {
        match self {
            Self::Stopping { leaving, .. } => *leaving,
            _ => None,
        }
    }

    /// The next deadline, for all to be complete at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let pause = self.pause().map(|pause| pause.deadline);
        pause.into_iter().chain(self.leaving()).min()
    }

    /// One sentence, if a deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        if self.leaving().is_some_and(|leaving| leaving <= now) {
            return Some(
                "a program still maps memory of another one that has freed it: move the VM when \
                 it has closed that memory"
                    .into(),
            );
        }
        let pause = self.pause().filter(|pause| pause.deadline <= now)?;
        Some(format!(
            "its programs would have paused for longer than {} ms",
            pause.limit.as_millis()
        ))
    }
}

impl Migration {
    /// The part of a session of the VM that begins now. `None` if it stays, because the last
    /// session that was there at the order has left: otherwise a move might never end.
    pub(super) fn part_of_new(&self) -> Option<Part> {
        let mut members = self.members.values();
        let lasts = members.any(|it| it.part == Part::First);
        self.stage.part_of_new().filter(|_| lasts)
    }

    /// The step that all have reached for which the gates wait.
    pub(super) fn step(&self) -> Option<Step> {
        let all_are_late = self.members.values().all(|it| it.part == Part::Late);
        let members = self.members.values();
        let steps = members.filter_map(|it| match it.part {
            Part::Late if !all_are_late => None,
            Part::Joined => Some(it.step.max(Some(Step::Copied))),
            Part::First | Part::Late => Some(it.step),
        });
        steps.min().flatten()
    }

    /// The reason why a session stays, with the destination, which it may concern.
    pub(super) fn reason(&self, error: String) -> String {
        let to = self.to.as_ref().map(Destination::to_string);
        match to {
            Some(to) if !error.contains(&to) => format!("{to}: {error}"),
            _ => error,
        }
    }
}

impl Member {
    /// The operator's report.
    pub(super) fn over(self, outcome: Outcome) -> Moved {
        let (figures, error) = match outcome {
            Ok(figures) => (
                Figures {
                    new_session: self.successor,
                    ..figures
                },
                None,
            ),
            Err(error) => (Figures::default(), Some(error)),
        };
        Moved {
            session: self.session,
            vm: self.vm,
            moved: error.is_none(),
            error,
            figures,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn sessions_stay_if_their_pause_takes_too_long() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((_stops, stop), (_rests, rest), (_commits, commit)) = (pipe(), pipe(), pipe());
        let stage = Stage::together([stop, rest, commit], Some(60_000));
        let late = Instant::now() + Duration::from_secs(3600);
        assert_eq!(stage.overdue(late), None, "the programs run");
        let stage = stage.advance(Some(Step::Copied), false);
        assert_eq!(stage.overdue(Instant::now()), None);
        let reason = stage.overdue(late).unwrap();
        assert_eq!(
            reason,
            "its programs would have paused for longer than 60000 ms"
        );
        assert!(stage.deadline().is_some_and(|deadline| deadline < late));
        let stage = stage.advance(Some(Step::Stopped), false);
        assert_eq!(stage.overdue(late), Some(reason));
        let stage = stage.advance(Some(Step::Complete), false);
        assert_eq!(stage.overdue(late), None);
    }

    fn member(session: u64, part: Part, step: Option<Step>) -> Member {
        Member {
            session,
            vm: "one".into(),
            successor: None,
            step,
            part,
        }
    }

    /// A migration of these members.
    fn migration(members: impl IntoIterator<Item = Member>) -> Migration {
        let members = members.into_iter().map(|member| (member.session, member));
        Migration {
            console: 0,
            single: false,
            members: members.collect(),
            stage: Stage::Staying,
            joining: None,
            to: None,
            why: None,
            over: Vec::new(),
        }
    }

    #[test]
    fn new_sessions_delay_no_gate_that_they_need_not() {
        use Part::{First, Joined, Late};
        use Step::{Complete, Copied, Stopped};
        for (steps, expected) in [
            (vec![(First, None), (Joined, None)], None),
            (vec![(First, Some(Copied)), (Joined, None)], Some(Copied)),
            (vec![(First, Some(Stopped)), (Joined, None)], Some(Copied)),
            (
                vec![(First, Some(Complete)), (Joined, Some(Stopped))],
                Some(Stopped),
            ),
            (vec![(First, Some(Stopped)), (Late, None)], Some(Stopped)),
            // The programs of the others have ended.
            (vec![(Joined, None), (Late, None)], Some(Copied)),
            (
                vec![(Late, Some(Stopped)), (Late, Some(Copied))],
                Some(Copied),
            ),
            (vec![], None),
        ] {
            let members = steps.iter().zip(1..);
            let members = members.map(|((part, step), id)| member(id, *part, *step));
            assert_eq!(migration(members).step(), expected, "{steps:?}");
        }
    }

    #[test]
    fn new_sessions_take_part_as_long_as_old_ones_move() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((_stops, stop), (_rests, rest), (_commits, commit)) = (pipe(), pipe(), pipe());
        let mut moves = migration([member(1, Part::First, None)]);
        assert_eq!(moves.part_of_new(), None);
        moves.stage = Stage::together([stop, rest, commit], None);
        assert_eq!(moves.part_of_new(), Some(Part::Joined));
        for step in [Step::Copied, Step::Stopped, Step::Complete] {
            let stage = std::mem::replace(&mut moves.stage, Stage::Staying);
            moves.stage = stage.advance(Some(step), false);
            assert_eq!(moves.part_of_new(), Some(Part::Late), "{step:?}");
        }
        assert!(matches!(moves.stage, Stage::Committed));
        moves.members = [(2, member(2, Part::Late, None))].into();
        assert_eq!(moves.part_of_new(), None, "only new ones are left");
    }

    #[test]
    fn freed_memory_is_left_before_the_rest_is_sent() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((_stops, stop), (_rests, rest), (_commits, commit)) = (pipe(), pipe(), pipe());
        let stage = Stage::together([stop, rest, commit], None);
        // While the programs run, they may have freed memory at any time.
        let stage = stage.advance(Some(Step::Copied), true);
        let now = Instant::now();
        let (late, too_late) = (now + LEAVING / 2, now + LEAVING * 2);
        assert_eq!(stage.overdue(too_late), None);
        let stage = stage.advance(Some(Step::Stopped), true);
        assert!(matches!(stage, Stage::Stopping { .. }));
        assert_eq!(stage.overdue(late), None);
        let reason = stage.overdue(too_late).unwrap();
        assert!(reason.contains("has freed it"), "{reason}");
        let deadline = stage.deadline();
        assert!(deadline.is_some_and(|deadline| deadline < too_late));
        // One of them executes a call.
        let stage = stage.advance(Some(Step::Copied), true);
        assert_eq!(stage.deadline(), deadline);
        let stage = stage.advance(Some(Step::Stopped), false);
        assert!(matches!(stage, Stage::Stopped { .. }));
        assert_eq!(stage.overdue(too_late), None);
    }
}
