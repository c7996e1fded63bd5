//! The threads that execute operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{AGAIN, Inner, Runs, State, TURN, Ticket};
use crate::exec::block::{BlockFault, BlockTurn, Grid};
use crate::exec::cluster::Cluster;
use paragpu_device::Error;
use paragpu_protocol::status::Status;

impl Inner {
    pub(super) fn host_functions(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((ticket, function)) = state.host.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut state, || function());
                self.complete(&mut state, ticket);
            } else if state.stop {
                return;
            } else {
                self.host.wait(&mut state);
            }
        }
    }

    fn end(&self, state: &mut State, turn: u64) {
        state.turns.in_flight.remove(&turn);
        if state.turns.awaited > 0 {
            self.done.notify_all();
        }
    }

    /// Repeats all attempts.
    fn attempt(&self, state: &mut State) {
        for (ticket, mut attempt) in std::mem::take(&mut state.attempts) {
            match attempt() {
                Ok(false) => state.attempts.push((ticket, attempt)),
                Ok(true) => self.complete(state, ticket),
                Err(error) => {
                    self.fail(state, error);
                    self.complete(state, ticket);
                }
            }
        }
    }

    /// Takes work until the scheduler stops. Waits for it on the condition variable of its
    /// kind of thread.
    pub(super) fn pool(&self, number: u32, runs: Runs) {
        let _guard = AbortOnPanic;
        let work = match runs {
            Runs::Everything => &self.kernels,
            Runs::Copies => &self.copies,
        };
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return;
            }
            if state.turns.paused {
                work.wait(&mut state);
                continue;
            }
            if let Some((ticket, task)) = state.tasks.pop_front() {
                self.pass_on(&state);
                let turn = state.begin();
                let result = parking_lot::MutexGuard::unlocked(&mut state, task);
                self.end(&mut state, turn);
                if let Err(error) = result {
                    self.fail(&mut state, error);
                }
                state.looking = Some(runs);
                self.complete(&mut state, ticket);
                state.looking = None;
                continue;
            }
            let picked = match runs {
                Runs::Everything => self.pick(&mut state),
                Runs::Copies => None,
            };
            let Some((ticket, grid, block, range)) = picked else {
                // The thread that runs no kernels repeats attempts.
                if runs == Runs::Everything || state.attempts.is_empty() {
                    work.wait(&mut state);
                } else {
                    work.wait_for(&mut state, AGAIN);
                    self.attempt(&mut state);
                }
                continue;
            };
            self.pass_on(&state);
            let turn = state.begin();
            let outcome = parking_lot::MutexGuard::unlocked(&mut state, || {
                run_blocks(&grid, block, range, number)
            });
            self.end(&mut state, turn);
            self.hand_back(&mut state, ticket, &grid, outcome);
        }
    }

    /// Takes a parked block or new blocks of the next kernel in turn.
    #[allow(clippy::type_complexity)]
    fn pick(
        &self,
        state: &mut State,
    ) -> Option<(Ticket, Arc<Grid>, Option<Cluster>, Option<Range<u64>>)> {
        let mut starved = false;
        for _ in 0..state.active.len() {
            let mut active = state.active.pop_front()?;
            let may_fresh = !active.failed && active.fresh.is_ready();
            let may_parked = !active.failed && !active.parked.is_empty();
            let wanted = may_fresh && (active.cooperative || active.prefer_fresh || !may_parked);
            let fresh = wanted && active.take_memory();
            starved |= wanted && !fresh && active.grid.device.kernel_memory.is_unused();
            let mut found = None;
            if fresh || may_parked {
                active.prefer_fresh = !fresh;
                active.running += 1;
                let (block, range) = if fresh {
                    (active.spare.pop(), active.fresh.take())
                } else {
                    (active.parked.pop_front(), None)
                };
                found = Some((active.ticket, Arc::clone(&active.grid), block, range));
            }
            state.active.push_back(active);
            if found.is_some() {
                return found;
            }
        }
        if starved {
            let why = "no host memory for the blocks of a kernel";
            self.fail(state, Error::new(Status::OUT_OF_MEMORY, why));
        }
        None
    }

    fn hand_back(&self, state: &mut State, ticket: Ticket, grid: &Grid, outcome: Outcome) {
        let Some(active) = state.active.iter_mut().find(|a| a.ticket == ticket) else {
            return;
        };
        active.running -= 1;
        active.fresh.complete(outcome.complete);
        match outcome.result {
            Ok(BlockTurn::Done) => active.spare.extend(outcome.block),
            Ok(_) => active.parked.extend(outcome.block),
            Err(fault) => {
                let error = fault_error(grid, &fault);
                if fault.fault != crate::error::Fault::Cancelled
                    || state.error.is_none() && !state.stop
                {
                    self.fail(state, error);
                }
            }
        }
        if let Some(rest) = outcome.rest
            && let Some(active) = state.active.iter_mut().find(|a| a.ticket == ticket)
        {
            active.fresh.put_back(rest);
        }
        state.looking = Some(Runs::Everything);
        self.reap(state);
        state.looking = None;
    }
}

/// A panic in this crate must end the session's process instead of leaving its streams
/// waiting forever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

struct Outcome {
    block: Option<Cluster>,
    result: Result<BlockTurn, BlockFault>,
    /// Number of blocks that were completed.
    complete: u64,
    rest: Option<Range<u64>>,
}

/// Continues with a parked block, or runs new ones until one does not complete in its turn.
fn run_blocks(grid: &Grid, block: Option<Cluster>, range: Option<Range<u64>>, sm: u32) -> Outcome {
    let mut block = block.unwrap_or_else(|| Cluster::new(grid));
    let Some(range) = range else {
        let result = block.run(grid, sm);
        return Outcome {
            block: Some(block),
            complete: u64::from(result == Ok(BlockTurn::Done)),
            result,
            rest: None,
        };
    };
    let begun = Instant::now();
    for index in range.clone() {
        if begun.elapsed() > TURN && index > range.start {
            return Outcome {
                block: Some(block),
                result: Ok(BlockTurn::Done),
                complete: index - range.start,
                rest: Some(index..range.end),
            };
        }
        block.start(grid, index);
        let result = block.run(grid, sm);
        if result != Ok(BlockTurn::Done) {
            let rest = (index + 1 < range.end).then_some(index + 1..range.end);
            return Outcome {
                block: Some(block),
                result,
                complete: index - range.start,
                rest,
            };
        }
    }
    Outcome {
        block: Some(block),
        result: Ok(BlockTurn::Done),
        complete: range.end - range.start,
        rest: None,
    }
}

fn fault_error(grid: &Grid, fault: &BlockFault) -> Error {
    use crate::error::Fault;
    let status = match fault.fault {
        Fault::IllegalAddress { .. } => Status::ILLEGAL_ADDRESS,
        Fault::Misaligned { .. } => Status::MISALIGNED_ADDRESS,
        Fault::Assert(_) => Status::ASSERT,
        Fault::StackOverflow => Status::HARDWARE_STACK_ERROR,
        Fault::Tensor(_) => Status::ILLEGAL_INSTRUCTION,
        Fault::InvalidTarget(_) => Status::INVALID_PC,
        Fault::Refused(_) => Status::NOT_SUPPORTED,
        Fault::Cancelled => Status::LAUNCH_TIMEOUT,
        Fault::Trap | Fault::Deadlock(_) | Fault::Texture(_) | Fault::Free(_) => {
            Status::LAUNCH_FAILED
        }
    };
    let name = grid.program.funcs.get(grid.func).map_or("", |f| &f.name);
    let ([bx, by, bz], [tx, ty, tz]) = (fault.block, fault.thread);
    Error::new(
        status,
        format!(
            "kernel {name}, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}): {}",
            fault.fault
        ),
    )
}
