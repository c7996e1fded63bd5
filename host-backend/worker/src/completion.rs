//! Calls that wait for the device while others go on.

use std::time::{Duration, Instant};

use paragpu_communicator::{Spin, Wait};
use paragpu_device::{EventId, StreamId};
use paragpu_protocol::handle::ObjectKind;

use crate::answer::At;
use crate::copy::CopyOut;
use crate::error::{End, Fault, Outcome};
use crate::events::Fence;
use crate::pages::PagesIn;
use crate::session::Session;

/// Most calls of a session that wait at once: more than a process has threads.
const MOST_PENDING: usize = 16 * 1024;

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum Goal {
    /// An event of the guest's.
    Event(EventId),
    /// Work that was under way.
    Fence(Fence),
    /// A bulk token's transfer.
    Token(u32),
    /// A copy whose bytes go to the guest.
    CopyOut(Box<CopyOut>),
    /// A copy from memory of the guest that the host reaches.
    PagesIn(Box<PagesIn>),
    /// Nothing: the reply only waits its turn.
    Ready(Vec<u8>),
}

impl Goal {
    /// The stream that comes to the goal, where it is one.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Fence(fence) => fence.stream(),
            Self::CopyOut(copy) => Some(copy.stream()),
            Self::PagesIn(copy) => Some(copy.stream()),
            Self::Event(_) | Self::Token(_) | Self::Ready(_) => None,
        }
    }
}

/// What is left to do at the goal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// Only the reply.
    Reply,
    /// Unregister the pinned memory at this offset of the window.
    HostUnmap(u64),
    /// Drop the shadow at this address.
    ShadowDestroy(u64),
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) at: At,
    pub(crate) goal: Goal,
    pub(crate) then: Then,
}

impl Session {
    /// Lets a call wait.
    pub(crate) fn wait_for(&mut self, pending: Pending) -> Result<(), End> {
        if self.pending.len() >= MOST_PENDING {
            return Err(End::TooMuch("calls that wait"));
        }
        self.pending.push(pending);
        self.statistics.waiting.set(self.pending.len() as u64);
        Ok(())
    }

    /// Answers the calls whose goals are reached; true where anything moved.
    /// Calls of one slot are answered in order.
    pub(crate) fn complete(&mut self) -> Result<bool, End> {
        let (mut moved, error) = self.tokens.poll(self.device.as_mut(), &mut self.events);
        if let Some((call, error)) = error {
            self.defer(call, &error);
        }
        let mut index = 0;
        while index < self.pending.len() {
            let (before, rest) = self.pending.split_at(index);
            let is_next = rest.first().is_some_and(|this| {
                this.at.slot == 0 || before.iter().all(|other| other.at.slot != this.at.slot)
            });
            if !is_next {
                index += 1;
                continue;
            }
            let mut this = self.pending.remove(index);
            match self.reached(&mut this) {
                Ok(false) => {
                    self.pending.insert(index, this);
                    index += 1;
                }
                Ok(true) => {
                    moved = true;
                    self.completing = true;
                    let finished = self.finish(this);
                    self.completing = false;
                    finished?;
                }
                Err(Fault::End(end)) => return Err(end),
                Err(fault) => {
                    moved = true;
                    self.completing = true;
                    let finished = self.abandon(this, fault);
                    self.completing = false;
                    finished?;
                }
            }
        }
        self.statistics.waiting.set(self.pending.len() as u64);
        Ok(moved)
    }

    fn reached(&mut self, pending: &mut Pending) -> Outcome<bool> {
        Ok(match &mut pending.goal {
            Goal::Event(event) => self.device.event_query(*event)?,
            Goal::Fence(fence) => fence.passed(self.device.as_mut(), &mut self.events)?,
            Goal::Token(token) => !self.tokens.is_under_way(*token),
            Goal::CopyOut(copy) => self.copy_out_step(pending.at, copy)?,
            Goal::PagesIn(copy) => self.pages_in_step(copy)?,
            Goal::Ready(_) => true,
        })
    }

    fn finish(&mut self, pending: Pending) -> Result<(), End> {
        self.forward_output()?;
        if let Goal::Ready(reply) = &pending.goal {
            return self.send_reply(pending.at, &[reply]);
        }
        let outcome = match pending.then {
            Then::Reply => Ok(()),
            Then::HostUnmap(offset) => self.host_unmap_now(offset),
            Then::ShadowDestroy(address) => self.shadow_destroy_now(address),
        };
        if let Goal::Token(token) = pending.goal
            && let Some(error) = self.tokens.take_failure(token)
        {
            return self.answer_token_failure(pending.at, &error);
        }
        self.finally(pending.at, outcome)
    }

    /// The goal will not be reached: what was to be done then is done now as
    /// far as it can be, so that nothing is left behind.
    fn abandon(&mut self, pending: Pending, fault: Fault) -> Result<(), End> {
        self.forward_output()?;
        match pending.then {
            Then::Reply => {}
            Then::HostUnmap(offset) => {
                let _ = self.host_unmap_now(offset);
                self.live.forget((ObjectKind::HostMemory, offset));
            }
            Then::ShadowDestroy(address) => {
                let _ = self.shadow_destroy_now(address);
                self.live.forget((ObjectKind::Shadow, address));
            }
        }
        match pending.goal {
            Goal::CopyOut(copy) => self.copy_out_abandon(*copy),
            Goal::PagesIn(copy) => self.pages_in_abandon(*copy),
            _ => {}
        }
        self.finally(pending.at, Err(fault))
    }

    fn finally(&mut self, at: At, outcome: Outcome<()>) -> Result<(), End> {
        match self.answer(at, outcome) {
            Ok(_) | Err(Fault::Call(_) | Fault::Stall) => Ok(()),
            Err(Fault::End(end)) => Err(end),
        }
    }
}

/// How to wait for the device and the guest at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For the guest, so long at most.
    Guest(Wait),
    /// For the device, so long at most: it needs this processor.
    Device(Duration),
}

/// Polls at first, then sleeps a part of the time already waited: a long
/// kernel costs little processor time, a short one little delay. Where others
/// want the processor it gives way: to a device that computes on this host,
/// most likely, and else to the guest, or to a thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    began: Option<Instant>,
    spin: Option<Spin>,
    /// The polling is over.
    polled: bool,
    /// It was ended by others who want the processor.
    crowded: bool,
}

/// Longest polling: short kernels and graphs end within it, and a nap costs
/// them more than it saves.
const POLLING: Duration = Duration::from_micros(200);
/// Shortest and longest sleep.
const NAP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));
/// A sleep is this part of the time waited, so that what it adds to a wait
/// stays under 1 %. A wait of a second then makes some 2500 sleeps.
const NAP_PART: u32 = 256;
/// Longest wait for the device alone.
const DOZE: Duration = Duration::from_micros(200);

impl Pacer {
    /// Something moved: poll again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// How to wait before looking at the device again, which may compute on
    /// this host.
    pub(crate) fn pace(&mut self, computes_on_host: bool) -> Pace {
        let began = *self.began.get_or_insert_with(Instant::now);
        if !self.polled {
            let spin = self.spin.get_or_insert_with(|| Spin::new(POLLING, None));
            if spin.again() {
                return Pace::Guest(Wait::Poll);
            }
            self.polled = true;
            // It ends early where the processor is wanted.
            self.crowded = began.elapsed() < POLLING;
        }
        if self.crowded && computes_on_host {
            return Pace::Device(DOZE);
        }
        let now = Instant::now();
        let waited = now - began;
        Pace::Guest(Wait::Until(now + (waited / NAP_PART).clamp(NAP.0, NAP.1)))
    }

    /// Is it worth looking for output of a kernel that still runs?
    pub(crate) fn is_slow(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() > NAP.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_with_the_wait() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.pace(true), Pace::Guest(Wait::Poll));
        while pacer.pace(true) == Pace::Guest(Wait::Poll) {}
        pacer.crowded = false;
        let now = Instant::now();
        for (waited, least, most) in [
            (1_u64, 10, 20),
            (25, 90, 110),
            (256, 900, 1100),
            (10_000, 900, 1100),
        ] {
            pacer.began = now.checked_sub(Duration::from_millis(waited));
            let Pace::Guest(Wait::Until(end)) = pacer.pace(true) else {
                panic!("still polling after {waited} ms");
            };
            let nap = end - now;
            // The clock went on a little since `now`.
            let slack = now.elapsed();
            assert!(nap >= Duration::from_micros(least));
            assert!(nap <= Duration::from_micros(most) + slack * 2, "{nap:?}");
        }
        pacer.crowded = true;
        assert_eq!(pacer.pace(true), Pace::Device(DOZE));
        assert!(matches!(pacer.pace(false), Pace::Guest(Wait::Until(_))));
        pacer.reset();
        assert_eq!(pacer.pace(true), Pace::Guest(Wait::Poll));
    }
}
