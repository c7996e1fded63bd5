//! The time account of an owner on a GPU.

use std::time::{Duration, Instant};

use paragpu_control::turn::TimeShare;

use super::{CREDIT, QUANTUM};

/// The time account of an owner on a GPU.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) share: TimeShare,
    /// GPU seconds used, divided by the weight. Only times of the same priority are compared.
    pub(super) time: f64,
    /// GPU seconds that the cap still allows; at most two [`QUANTUM`]s accumulate.
    pub(super) budget: f64,
    filled: Instant,
    /// The least [`standing`](super::Runner::standing) of the owner's sessions with work; it
    /// never decreases.
    pub(super) standing: Duration,
    /// When one of its sessions last got a turn [out of order](super::Gpu::overdue).
    pub(super) out_of_order: Option<Instant>,
}

impl Clock {
    /// Starts at `floor`, the least time of its priority.
    pub(super) fn new(share: TimeShare, floor: f64, now: Instant) -> Self {
        Self {
            share,
            time: floor,
            budget: QUANTUM.as_secs_f64(),
            filled: now,
            standing: Duration::ZERO,
            out_of_order: None,
        }
    }

    /// Changes the share. What the owner used beyond its old one stays, in GPU seconds. Priorities
    /// have separate floors: at another one, the owner starts anew.
    pub(super) fn change(&mut self, share: TimeShare, floor: f64) {
        let ahead = match share.priority == self.share.priority {
            true => self.ahead(floor),
            false => 0.0,
        };
        self.time = floor + ahead / share.weight;
        self.share = share;
    }

    pub(super) fn fill(&mut self, now: Instant) {
        let rate = f64::from(self.share.cap) / 100.0;
        let more = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        self.budget = (self.budget + more).min(2.0 * QUANTUM.as_secs_f64());
        self.filled = now;
    }

    pub(super) fn charge(&mut self, seconds: f64) {
        self.time += seconds / self.share.weight;
        self.budget -= seconds;
    }

    /// Limits the time that the owner may catch up.
    pub(super) fn return_to(&mut self, floor: f64) {
        let credit = CREDIT.as_secs_f64() / self.share.weight;
        self.time = self.time.max(floor - credit);
    }

    /// GPU seconds by which the owner is ahead of `floor`.
    fn ahead(&self, floor: f64) -> f64 {
        (self.time - floor) * self.share.weight
    }

    /// GPU seconds that the owner used beyond its share. Without memory of it, an owner would
    /// get rid of it by ending its sessions and starting new ones.
    pub(super) fn debt(&self, floor: f64) -> f64 {
        self.ahead(floor).max(0.0).max(self.wait().as_secs_f64())
    }

    pub(super) fn is_capped(&self) -> bool {
        self.share.cap < 100
    }

    /// How long until the cap allows a whole [`QUANTUM`]; zero if it does now.
    pub(super) fn wait(&self) -> Duration {
        let lacks = QUANTUM.as_secs_f64() - self.budget;
        if !self.is_capped() || lacks <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(lacks * 100.0 / f64::from(self.share.cap))
    }
}
