//! Chooses the GPU for a guest's device.
//!
//! A session is placed when its guest is admitted, by the load at that moment. The only
//! state is the GPU of the previous session. Two devices of one process get different
//! GPUs unless there are fewer GPUs than devices, and a device that a process already
//! uses stays where it is.
#![forbid(unsafe_code)]

use paragpu_config::host::Placement;

/// A GPU that may serve the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    /// Its index among the daemon's devices.
    pub position: u32,
    /// Number of its sessions, including those that wait for a worker.
    pub sessions: u64,
    /// Bytes of device memory that they hold, as last reported by their workers.
    pub memory: u64,
    /// Whether the last worker that tried could open it.
    pub works: bool,
}

/// A device that the guest process already uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    /// Its number in the guest.
    pub ordinal: u32,
    /// Its index among the daemon's devices.
    pub position: u32,
}

/// Chooses the GPU for the guest's device `ordinal` and returns its index. `gpus` is in
/// the order in which the guest sees them, `held` lists the devices that the process
/// already uses, and `last` is the index of the previous session's GPU. `None` if the
/// guest has no such device.
#[must_use]
pub fn choose(
    policy: Placement,
    ordinal: u32,
    gpus: &[Gpu],
    held: &[Assigned],
    last: Option<u32>,
) -> Option<u32> {
    let own = gpus.get(usize::try_from(ordinal).ok()?)?;
    if let Some(same) = held.iter().find(|held| held.ordinal == ordinal) {
        return Some(same.position);
    }
    let taken = |gpu: &Gpu| held.iter().any(|held| held.position == gpu.position);
    let mut free: Vec<&Gpu> = gpus.iter().filter(|gpu| !taken(gpu)).collect();
    if free.is_empty() {
        free = gpus.iter().collect();
    }
    if policy != Placement::Fixed && free.iter().any(|gpu| gpu.works) {
        free.retain(|gpu| gpu.works);
    }
    let chosen = match policy {
        Placement::Fixed => free.iter().find(|gpu| **gpu == own).or(free.first()),
        Placement::RoundRobin => free
            .iter()
            .filter(|gpu| last.is_some_and(|last| gpu.position > last))
            .min_by_key(|gpu| gpu.position)
            .or_else(|| free.iter().min_by_key(|gpu| gpu.position)),
        Placement::LeastLoaded => free
            .iter()
            .min_by_key(|gpu| (gpu.sessions, gpu.memory, gpu.position)),
    };
    chosen.map(|gpu| gpu.position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICIES: [Placement; 3] = [
        Placement::Fixed,
        Placement::RoundRobin,
        Placement::LeastLoaded,
    ];

    fn gpu(position: u32, sessions: u64, memory: u64) -> Gpu {
        Gpu {
            position,
            sessions,
            memory,
            works: true,
        }
    }

    #[test]
    fn fixed_is_the_guests_order() {
        let gpus = [gpu(2, 9, 0), gpu(0, 0, 0)];
        let position = |ordinal| choose(Placement::Fixed, ordinal, &gpus, &[], Some(2));
        assert_eq!(
            (position(0), position(1), position(2)),
            (Some(2), Some(0), None)
        );
    }

    #[test]
    fn round_robin_wraps_around() {
        let gpus = [gpu(0, 5, 0), gpu(1, 0, 0), gpu(3, 0, 0)];
        let mut last = None;
        let mut places = Vec::new();
        for _ in 0..5 {
            last = choose(Placement::RoundRobin, 0, &gpus, &[], last);
            places.push(last.unwrap());
        }
        assert_eq!(places, [0, 1, 3, 0, 1]);
    }

    #[test]
    fn least_loaded_counts_sessions_then_memory() {
        let policy = Placement::LeastLoaded;
        let gpus = [gpu(0, 2, 0), gpu(1, 1, 5), gpu(2, 1, 4)];
        assert_eq!(choose(policy, 0, &gpus, &[], None), Some(2));
        let mut broken = gpus;
        broken[2].works = false;
        assert_eq!(choose(policy, 0, &broken, &[], None), Some(1));
        broken.iter_mut().for_each(|gpu| gpu.works = false);
        assert_eq!(choose(policy, 0, &broken, &[], None), Some(2));
    }

    #[test]
    fn a_device_in_use_stays() {
        let held = [Assigned {
            ordinal: 0,
            position: 1,
        }];
        let gpus = [gpu(0, 0, 0), gpu(1, 9, 0)];
        for policy in POLICIES {
            assert_eq!(choose(policy, 0, &gpus, &held, None), Some(1));
            assert_eq!(choose(policy, 1, &gpus, &held, None), Some(0));
        }
    }

    proptest! {
        #[test]
        fn devices_of_a_process_differ(
            loads in prop::collection::vec((0..4_u64, 0..4_u64, any::<bool>()), 1..8),
            order in prop::collection::vec(0..8_u32, 1..12),
            policy in 0..3_usize,
        ) {
            let mut gpus: Vec<Gpu> = (0..).zip(&loads).map(|(position, &(sessions, memory, works))| {
                Gpu { works, ..gpu(position, sessions, memory) }
            }).collect();
            let mut held: Vec<Assigned> = Vec::new();
            let mut last = None;
            for ordinal in order {
                let chosen = choose(POLICIES[policy], ordinal, &gpus, &held, last);
                prop_assert_eq!(chosen.is_some(), (ordinal as usize) < gpus.len());
                let Some(position) = chosen else { continue };
                if !held.iter().any(|held| held.ordinal == ordinal) {
                    prop_assert!(held.iter().all(|held| held.position != position));
                    held.push(Assigned { ordinal, position });
                }
                last = chosen;
                gpus[position as usize].sessions += 1;
            }
        }
    }
}
