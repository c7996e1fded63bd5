//! The memory of a GPU that no driver counts, divided among VMs.
//!
//! Each VM has an account of its own here, which no worker of another VM can write. Its limit is
//! the VM's part of the GPU. A charge that does not fit into the part waits until the daemon has
//! divided the GPU again: every VM keeps what it uses, the VM that asks gets what it needs, and
//! the rest is divided evenly, so that the next charges need not ask. A VM whose workers claim
//! more than its part counts with its part.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use paragpu_control::account::{Account, Book};

use crate::ledger::Ledger;

/// The memory of a GPU.
#[derive(Debug, Default)]
pub struct GpuMemory {
    /// Its size; `None` until the GPU is found.
    bytes: Option<u64>,
    /// By VM.
    parts: BTreeMap<String, Part>,
}

/// A VM's part.
#[derive(Debug)]
struct Part {
    ledger: Ledger,
    /// The limit in the account, which the VM's workers may have overwritten.
    bytes: u64,
}

impl Part {
    fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.account().part_to(bytes);
    }

    fn account(&self) -> &Account {
        self.ledger.account()
    }

    /// What the VM uses, by its workers.
    fn used(&self) -> u64 {
        self.account().used(Book::Device).min(self.bytes)
    }
}

impl GpuMemory {
    /// Records the size of the GPU. Nothing was refused before it was known, so each VM keeps what
    /// it uses by then, up to its `limit`.
    pub fn found(&mut self, bytes: u64, limit: impl Fn(&str) -> u64) {
        if self.bytes.replace(bytes).is_some() {
            return;
        }
        // First closed, as all are until now, then counted, as in `enlarge`.
        for (vm, part) in &mut self.parts {
            part.resize(part.account().used(Book::Device).min(limit(vm)));
        }
    }

    /// Opens an empty part for a VM. Returns false if it has one already.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(&mut self, vm: &str) -> Result<bool, String> {
        let is_new = !self.parts.contains_key(vm);
        if is_new {
            self.insert(vm, Ledger::new()?);
        }
        Ok(is_new)
    }

    /// Takes over the part of a VM from an earlier daemon. What it uses counts from when the GPU is
    /// [found](Self::found).
    pub fn adopt(&mut self, vm: &str, account: Account) {
        if !self.parts.contains_key(vm) {
            self.insert(vm, Ledger::of(account));
        }
    }

    fn insert(&mut self, vm: &str, ledger: Ledger) {
        let mut part = Part { ledger, bytes: 0 };
        part.resize(0);
        self.parts.insert(vm.to_owned(), part);
    }

    /// The account of a VM's part.
    pub fn part(&mut self, vm: &str) -> Option<&mut Ledger> {
        self.parts.get_mut(vm).map(|part| &mut part.ledger)
    }

    /// The accounts of all parts.
    pub fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        self.parts.values().map(|part| &part.ledger)
    }

    /// Removes a session. Returns whether any is left.
    pub fn leave(&mut self, session: u64) -> bool {
        self.parts.retain(|_, part| {
            part.ledger.leave(session);
            !part.ledger.is_empty()
        });
        !self.parts.is_empty()
    }

    /// Divides the memory so that the part of `vm` is `total` bytes, or as many as the other VMs
    /// do not use. `limit` gives the maximum of each VM's part. Returns the part; `None` if there
    /// is none, or the size of the GPU is not known yet.
    pub fn enlarge(&mut self, vm: &str, total: u64, limit: impl Fn(&str) -> u64) -> Option<u64> {
        let bytes = self.bytes?;
        let at = self.parts.keys().position(|name| name == vm)?;
        // First closed, then counted: a charge that is not counted here finds the part closed,
        // and its worker asks.
        for part in self.parts.values() {
            part.account().part_to(0);
        }
        let used: Vec<u64> = self.parts.values().map(Part::used).collect();
        let own = used.get(at).copied().unwrap_or_default();
        let mut free = bytes.saturating_sub(used.iter().copied().fold(0, u64::saturating_add));
        let needed = total.min(limit(vm)).saturating_sub(own).min(free);
        free -= needed;
        let even = free / self.parts.len() as u64;
        for ((name, part), used) in self.parts.iter_mut().zip(used) {
            let more = if name == vm { even + needed } else { even };
            part.resize((used + more).min(limit(name)).max(used));
        }
        self.parts.get(vm).map(|part| part.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_control::account::{Divider, Share};
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const GPU: u64 = 1000;

    /// A GPU, and how a worker of a VM asks for a larger part.
    #[derive(Debug, Clone)]
    struct Asking {
        gpu: Arc<Mutex<GpuMemory>>,
        vm: String,
        limits: BTreeMap<String, u64>,
    }

    impl Divider for Asking {
        fn enlarge(&self, total: u64) -> Option<u64> {
            let limit = |vm: &str| self.limits.get(vm).copied().unwrap_or(u64::MAX);
            self.gpu.lock().enlarge(&self.vm, total, limit)
        }
    }

    /// The share of a VM's only session on the GPU, which has no other limit.
    fn share(gpu: &Arc<Mutex<GpuMemory>>, vm: &str, limits: &[(&str, u64)]) -> Share {
        let mut memory = gpu.lock();
        memory.found(GPU, |_| u64::MAX);
        assert!(memory.open(vm).unwrap() && !memory.open(vm).unwrap());
        let ledger = memory.part(vm).unwrap();
        let slot = ledger.enter(vm.len() as u64, None).unwrap();
        let copy = ledger.account().as_fd().try_clone_to_owned().unwrap();
        let part = Arc::new(Account::open(copy).unwrap());
        let mut share = Share::default().on_gpu(part, slot);
        share.set_divider(Arc::new(Asking {
            gpu: Arc::clone(gpu),
            vm: vm.to_owned(),
            limits: limits
                .iter()
                .map(|(vm, limit)| ((*vm).to_owned(), *limit))
                .collect(),
        }));
        share
    }

    /// Writes everything that a worker of a VM can write.
    fn scribble(gpu: &Mutex<GpuMemory>, vm: &str, word: u64) {
        let mut memory = gpu.lock();
        let account = memory.part(vm).unwrap().account().as_fd();
        let file = std::fs::File::from(account.try_clone_to_owned().unwrap());
        let words = file.metadata().unwrap().len() / 8;
        let bytes: Vec<u8> = (0..words).flat_map(|_| word.to_ne_bytes()).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    }

    #[test]
    fn a_compromised_worker_takes_its_own_part_alone() {
        for word in [u64::MAX, u64::MAX >> 1, GPU, 1, 0] {
            let gpu = Arc::new(Mutex::new(GpuMemory::default()));
            let limits = [("greedy", 300)];
            let greedy = share(&gpu, "greedy", &limits);
            let honest = share(&gpu, "other", &limits);
            assert!(greedy.take(100) && honest.take(100));
            scribble(&gpu, "greedy", word);
            assert!(greedy.free() <= 300);
            scribble(&gpu, "greedy", word);
            assert!(honest.free() >= 600, "{word:#x}: {}", honest.free());
            assert!(honest.take(600), "{word:#x}");
            scribble(&gpu, "greedy", word);
            honest.give_back(700);
            assert!(honest.take(700), "{word:#x}");
            gpu.lock().leave("greedy".len() as u64);
            assert!(honest.take(300) && !honest.take(1));
        }
    }

    /// Asks, and another VM takes memory while the answer is on its way: all but `leaves`.
    #[derive(Debug)]
    struct Meanwhile {
        asking: Asking,
        other: Share,
        leaves: u64,
        first: AtomicBool,
    }

    impl Divider for Meanwhile {
        fn enlarge(&self, total: u64) -> Option<u64> {
            let part = self.asking.enlarge(total);
            if self.first.swap(false, Ordering::Relaxed) {
                assert!(self.other.take(GPU - self.leaves), "nobody has it");
            }
            part
        }
    }

    #[test]
    fn a_charge_that_has_no_room_is_in_nobodys_way() {
        for (bytes, leaves) in [(GPU + 1, 0), (GPU, 0), (GPU, 1), (700, 700), (700, 699)] {
            let gpu = Arc::new(Mutex::new(GpuMemory::default()));
            let (mut one, other) = (share(&gpu, "a", &[]), share(&gpu, "of another", &[]));
            one.set_divider(Arc::new(Meanwhile {
                asking: Asking {
                    gpu: Arc::clone(&gpu),
                    vm: "a".to_owned(),
                    limits: BTreeMap::new(),
                },
                other,
                leaves,
                first: AtomicBool::new(true),
            }));
            let fits = bytes <= leaves;
            assert_eq!(one.take(bytes), fits);
            let last = share(&gpu, "the last", &[]);
            assert_eq!(last.free(), if fits { leaves - bytes } else { leaves });
        }
    }

    #[test]
    fn what_workers_took_while_there_was_no_daemon_counts() {
        let gpu = Arc::new(Mutex::new(GpuMemory::default()));
        let [_, mut kept] = ["greedy", "kept"].map(|vm| share(&gpu, vm, &[]));
        assert!(kept.take(100));
        scribble(&gpu, "greedy", u64::MAX >> 1);
        let next = Arc::new(Mutex::new(GpuMemory::default()));
        for vm in ["greedy", "kept"] {
            let mut memory = gpu.lock();
            let account = memory.part(vm).unwrap().account().as_fd();
            let account = Account::open(account.try_clone_to_owned().unwrap()).unwrap();
            next.lock().adopt(vm, account);
        }
        kept.set_divider(Arc::new(Asking {
            gpu: Arc::clone(&next),
            vm: "kept".to_owned(),
            limits: BTreeMap::new(),
        }));
        assert!(kept.take(150), "the size of the GPU is not known");
        next.lock().found(GPU, |_| 300);
        let new = share(&next, "of another VM", &[]);
        assert_eq!((new.free(), kept.free()), (450, 450));
        assert!(!kept.take(451) && kept.take(450) && new.free() == 0);
    }

    proptest! {
        #[test]
        fn honest_sessions_get_what_is_free(steps in proptest::collection::vec((0_usize..3, 1_u64..500, any::<bool>()), 1..100)) {
            let gpu = Arc::new(Mutex::new(GpuMemory::default()));
            let names = ["a", "bb", "ccc"];
            let shares = names.map(|vm| share(&gpu, vm, &[]));
            let mut held = [0; 3];
            for (who, bytes, takes) in steps {
                let free = GPU - held.iter().sum::<u64>();
                if takes {
                    prop_assert_eq!(shares[who].take(bytes), bytes <= free);
                    held[who] += if bytes <= free { bytes } else { 0 };
                } else {
                    let bytes = bytes.min(held[who]);
                    shares[who].give_back(bytes);
                    held[who] -= bytes;
                }
                let free = GPU - held.iter().sum::<u64>();
                prop_assert_eq!(shares[(who + 1) % 3].free(), free);
                let parts: u64 = gpu.lock().parts.values().map(|part| part.bytes).sum();
                prop_assert!(parts <= GPU);
            }
        }
    }
}
