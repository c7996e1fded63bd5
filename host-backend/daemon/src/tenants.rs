//! Tenants (VMs, users and addresses) with sessions: their accounts of memory, and the
//! process that serves each VM's device.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use paragpu_communicator_secure::Identity;
use paragpu_config::host::Host;
use paragpu_control::account::{Account, Book, SLOTS};
use paragpu_control::peer;
use paragpu_control::socket::Control;
use paragpu_control::worker::ToWorker;
use paragpu_protocol::{MAX_VM_NAME, is_vm_name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::cgroup::{Group, Groups, Limits};
use crate::gpu_memory::GpuMemory;
use crate::ledger::Ledger;
use crate::offers::{Offers, Payer, Room};
use crate::received_fd::ReceivedFd;

/// All tenants.
#[derive(Debug)]
pub struct Tenants {
    accounts: BTreeMap<String, Tenant>,
    /// The memory of GPUs that no driver counts, by their labels.
    gpus: BTreeMap<String, GpuMemory>,
    /// The process that serves a VM's PCI device, by VM.
    processes: BTreeMap<String, DeviceProcess>,
    /// The last certificate presented by a VM, by VM.
    certified: BTreeMap<String, Arc<Identity>>,
    /// Bytes of device memory of a VM's lease, by VM.
    leased: BTreeMap<String, u64>,
    /// The control groups of VMs, or why the daemon may create none.
    groups: Result<Groups, String>,
}

/// Who counts the memory of a GPU.
#[derive(Debug, Clone, Copy)]
pub enum Memory<'a> {
    /// Its driver.
    Driver,
    /// Nobody but its workers: it is the host's memory.
    Host {
        /// The GPU.
        label: &'a str,
        /// Its size in bytes.
        bytes: u64,
    },
}

/// A tenant with sessions.
#[derive(Debug)]
struct Tenant {
    ledger: Ledger,
    /// The control group of its workers.
    group: Option<Group>,
    /// Whether its GPUs have their memory in the host's.
    software: bool,
    offers: Offers,
    /// Moves in a row that ended because a session shared memory meanwhile.
    spoiled: u32,
}

/// A device process.
#[derive(Debug)]
pub struct DeviceProcess {
    /// 0 if it is not visible in the daemon's PID namespace.
    pid: i32,
    /// Distinguishes it from all others, visible or not.
    identity: Option<u64>,
    pidfd: OwnedFd,
}

impl DeviceProcess {
    /// The process at the other end of a connection. `None` if it is in another PID namespace
    /// and this kernel cannot distinguish it from others (before Linux 6.9).
    ///
    /// # Errors
    /// One sentence: it has ended, so somebody else holds its connection.
    pub fn of_peer(socket: &impl AsFd, pid: i32) -> Result<Option<Self>, String> {
        let ended = || "the process that connected has ended".to_owned();
        let pidfd = match peer::pidfd(socket) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Err(ended()),
            Err(_) => return Ok(None),
        };
        let identity = peer::identity(&pidfd);
        let process = Self {
            pid,
            identity,
            pidfd,
        };
        if !process.lives() {
            return Err(ended());
        }
        Ok((pid != 0 || identity.is_some()).then_some(process))
    }

    fn is(&self, other: &Self) -> bool {
        match self.identity.zip(other.identity) {
            Some((one, other)) => one == other,
            None => self.pid == other.pid,
        }
    }

    /// Whether it is still running.
    fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(poll(&mut fds, Some(&now)), Ok(1))
    }
}

impl std::fmt::Display for DeviceProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            0 => formatter.write_str("a process of another PID namespace"),
            pid => write!(formatter, "process {pid}"),
        }
    }
}

impl Tenants {
    /// Accounts that are empty. Each VM gets one of the control groups.
    #[must_use]
    pub fn new(groups: Result<Groups, String>) -> Self {
        Self {
            accounts: BTreeMap::new(),
            gpus: BTreeMap::new(),
            processes: BTreeMap::new(),
            certified: BTreeMap::new(),
            leased: BTreeMap::new(),
            groups,
        }
    }

    /// Why VMs have no control groups, if they have none.
    #[must_use]
    pub fn ungrouped(&self) -> Option<&str> {
        self.groups.as_ref().err().map(String::as_str)
    }

    /// Opens the accounts of `vm` and, if nobody else counts its memory, of its part of the GPU.
    /// Returns what identifies them.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(&mut self, host: &Host, vm: &str, gpu: &Memory<'_>) -> Result<Vec<u64>, String> {
        if !self.accounts.contains_key(vm) {
            let ledger = Ledger::new()?;
            limit(ledger.account(), host, vm, self.certified_memory(vm));
            self.add(host, vm, gpu, ledger);
        }
        if let Memory::Host { label, bytes } = *gpu {
            let is_new = self.gpus.entry(label.to_owned()).or_default().open(vm)?;
            self.gpu_found(host, label, bytes);
            if is_new {
                self.enlarge_part(host, vm, label, 0);
            }
        }
        let identities = self.ledgers(vm, gpu).map(|ledger| {
            let identity = ledger.account().identity();
            identity.map_err(|error| format!("an account cannot be identified: {error}"))
        });
        identities.collect()
    }

    fn add(&mut self, host: &Host, vm: &str, gpu: &Memory<'_>, ledger: Ledger) {
        let software = matches!(gpu, Memory::Host { .. });
        let tenant = Tenant {
            ledger,
            group: self.create_group(host, software, vm),
            software,
            offers: Offers::default(),
            spoiled: 0,
        };
        self.accounts.insert(vm.to_owned(), tenant);
    }

    /// Records the size of a GPU of which sessions of an earlier daemon have parts.
    pub fn gpu_found(&mut self, host: &Host, gpu: &str, bytes: u64) {
        if let Some(mut memory) = self.gpus.remove(gpu) {
            memory.found(bytes, |vm| self.part_limit(host, vm));
            self.gpus.insert(gpu.to_owned(), memory);
        }
    }

    /// Lets the part of a GPU that a VM may use be `total` bytes, if other VMs do not use them.
    /// Returns the part; `None` if the VM has none.
    pub fn enlarge_part(&mut self, host: &Host, vm: &str, gpu: &str, total: u64) -> Option<u64> {
        let mut memory = self.gpus.remove(gpu)?;
        let part = memory.enlarge(vm, total, |vm| self.part_limit(host, vm));
        self.gpus.insert(gpu.to_owned(), memory);
        part
    }

    /// The largest part of a GPU that a VM may have.
    fn part_limit(&self, host: &Host, vm: &str) -> u64 {
        match self.memory_limit(host, vm) {
            0 => u64::MAX,
            limit => limit,
        }
    }

    /// The open accounts of a VM and of its part of a GPU.
    fn ledgers(&mut self, vm: &str, gpu: &Memory<'_>) -> impl Iterator<Item = &mut Ledger> {
        let of_vm = self.accounts.get_mut(vm).map(|it| &mut it.ledger);
        let of_gpu = match gpu {
            Memory::Driver => None,
            Memory::Host { label, .. } => self.gpus.get_mut(*label).and_then(|it| it.part(vm)),
        };
        of_vm.into_iter().chain(of_gpu)
    }

    /// Assigns a worker, by its process ID and control socket, slots in the
    /// [open](Self::open) accounts, and moves it into the VM's control group, before it gets the
    /// session. Workers count their memory in the accounts directly, without a message to the
    /// daemon. `source`: the session of this VM that the session continues.
    ///
    /// # Errors
    /// One sentence.
    pub fn grant(
        &mut self,
        vm: &str,
        (session, source): (u64, Option<u64>),
        gpu: &Memory<'_>,
        worker: (u32, &Control),
    ) -> Result<(), String> {
        let (pid, control) = worker;
        let (mut slots, mut fds) = (Vec::new(), Vec::new());
        for ledger in self.ledgers(vm, gpu) {
            let slot = ledger.enter(session, source);
            slots.push(slot.ok_or_else(|| format!("{SLOTS} sessions are the maximum"))?);
            fds.push(ledger.account().as_fd());
        }
        let mut slots = slots.into_iter();
        let quota = ToWorker::Quota {
            slot: slots.next().ok_or("the VM has no account")?,
            gpu: slots.next(),
        };
        control
            .send(&quota, &fds)
            .map_err(|error| format!("the worker cannot be reached: {error}"))?;
        self.group(vm, pid);
        Ok(())
    }

    /// Moves a worker into its VM's control group.
    fn group(&self, vm: &str, pid: u32) {
        let group = self.accounts.get(vm).and_then(|it| it.group.as_ref());
        if let Some(Err(error)) = group.map(|group| group.admit(pid)) {
            tracing::warn!(vm, worker = pid, %error, "the worker has no control group");
        }
    }

    /// Lets a session of an earlier daemon keep its slots. `known` identifies their accounts, by
    /// the session's record: its worker, which gives them, is not trusted. They keep their limits
    /// until these are next computed.
    ///
    /// # Errors
    /// One sentence.
    pub fn readmit(
        &mut self,
        host: &Host,
        (vm, gpu): (&str, &Memory<'_>),
        (session, pid): (u64, u32),
        known: &[u64],
        given: Vec<(Account, u32)>,
    ) -> Result<(), String> {
        let given = given.into_iter().map(|(account, slot)| {
            let identity = account.identity().unwrap_or_default();
            (identity, account, slot)
        });
        let given: Vec<_> = given.collect();
        if !given.iter().map(|(identity, ..)| identity).eq(known) {
            return Err("it has accounts that it was not given".into());
        }
        let mut slots = Vec::new();
        for (position, (_, account, slot)) in given.into_iter().enumerate() {
            match (position, gpu) {
                (0, _) if !self.accounts.contains_key(vm) => {
                    self.add(host, vm, gpu, Ledger::of(account));
                }
                (1, Memory::Host { label, .. }) => {
                    let gpu = self.gpus.entry((*label).to_owned()).or_default();
                    gpu.adopt(vm, account);
                }
                _ => {}
            }
            slots.push(slot);
        }
        for ((ledger, slot), known) in self.ledgers(vm, gpu).zip(slots).zip(known) {
            let same = ledger.account().identity().is_ok_and(|it| it == *known);
            if !same || !ledger.keep(session, slot) {
                return Err("it has a slot of another session".into());
            }
        }
        self.group(vm, pid);
        Ok(())
    }

    /// Clears what sessions had that ended while there was no daemon.
    pub fn forget_ended(&self) {
        let of_vms = self.accounts.values().map(|tenant| &tenant.ledger);
        of_vms
            .chain(self.gpus.values().flat_map(GpuMemory::ledgers))
            .for_each(Ledger::clear_others);
    }

    /// The control group of a VM; `None` if there are none.
    fn create_group(&self, host: &Host, software: bool, vm: &str) -> Option<Group> {
        let made = self.groups.as_ref().ok()?.group(vm);
        let limits = self.group_limits(host, software, vm);
        let limited = made.and_then(|group| group.limit(limits).map(|()| group));
        limited
            .map_err(|error| tracing::warn!(vm, %error, "the VM has no control group"))
            .ok()
    }

    /// Whether the kernel has ended workers of a VM because its group reached its memory
    /// limit.
    #[must_use]
    pub fn ran_out_of_memory(&self, vm: &str) -> bool {
        let tenant = self.accounts.get(vm);
        let group = tenant.and_then(|tenant| tenant.group.as_ref());
        group.is_some_and(Group::ran_out_of_memory)
    }

    fn group_limits(&self, host: &Host, software: bool, vm: &str) -> Limits {
        let sessions = self.session_limit(host, vm);
        Limits::of(host, software, sessions, self.memory_limit(host, vm))
    }

    /// Applies a VM's limits, which may have changed, to its account and group.
    fn apply_limits(&self, host: &Host, vm: &str, certified: u64) {
        let Some(tenant) = self.accounts.get(vm) else {
            return;
        };
        limit(tenant.ledger.account(), host, vm, certified);
        if let Some(group) = &tenant.group
            && let Err(error) = group.limit(self.group_limits(host, tenant.software, vm))
        {
            tracing::warn!(vm, %error, "the limits of the VM's control group stay");
        }
    }

    /// Removes a session whose worker has exited, and clears its slots in the accounts.
    pub fn release(&mut self, vm: &str, session: u64) {
        self.gpus.retain(|_, gpu| gpu.leave(session));
        let Some(tenant) = self.accounts.get_mut(vm) else {
            return;
        };
        tenant.ledger.leave(session);
        tenant.offers.release(session);
        if tenant.ledger.is_empty() {
            self.accounts.remove(vm);
            self.certified.remove(vm);
        } else {
            self.charge_lent(vm);
        }
    }

    /// The limits of offers, by this process's descriptors.
    #[must_use]
    pub fn room_for_offers(&self) -> Room {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Those that are not closed yet count as well.
        let offers = self.accounts.values().map(|tenant| tenant.offers.len());
        let offers = offers.sum::<usize>() + ReceivedFd::of_workers();
        Room::of(usize::try_from(limit).unwrap_or(usize::MAX), offers)
    }

    /// Records that a move of this VM ends because one of its sessions shares memory
    /// meanwhile. Returns how many have in a row.
    pub fn spoiled(&mut self, vm: &str) -> u32 {
        self.accounts.get_mut(vm).map_or(0, |tenant| {
            tenant.spoiled = tenant.spoiled.saturating_add(1);
            tenant.spoiled
        })
    }

    /// Records that a session moves away: others take what its destination offers.
    pub fn moved(&mut self, vm: &str, session: u64) {
        if let Some(tenant) = self.accounts.get_mut(vm) {
            tenant.spoiled = 0;
            tenant.offers.release_moved(session);
            self.charge_lent(vm);
        }
    }

    /// Records that a session has arrived, with memory that it may still share with others.
    pub fn arrived(&mut self, vm: &str, session: u64) {
        if let Some(tenant) = self.accounts.get_mut(vm) {
            tenant.offers.arrived(session);
            self.charge_lent(vm);
        }
    }

    /// Charges memory that a VM's sessions no longer offer, and others still map. Follows each
    /// change of [`offers`](Self::offers) but new ones.
    pub fn charge_lent(&self, vm: &str) {
        let Some(tenant) = self.accounts.get(vm) else {
            return;
        };
        let [of_vm, of_gpus] = [Payer::Vm, Payer::Gpu].map(|payer| tenant.offers.charges(payer));
        let bytes = |charges: &BTreeMap<u64, u64>, session| {
            let charged = charges.get(&session).copied();
            charged.unwrap_or_default()
        };
        for session in tenant.ledger.sessions() {
            tenant.ledger.charge_lent(session, bytes(&of_vm, session));
            for part in self.gpus.values().flat_map(GpuMemory::ledgers) {
                part.charge_lent(session, bytes(&of_gpus, session));
            }
        }
    }

    /// The offers of a VM's sessions.
    pub fn offers(&mut self, vm: &str) -> Option<&mut Offers> {
        self.accounts.get_mut(vm).map(|tenant| &mut tenant.offers)
    }

    /// Applies the limits of a certificate that a guest of the VM presented.
    pub fn certify(&mut self, identity: &Arc<Identity>, host: &Host) {
        let vm = &identity.vm;
        // Those of guests that were refused.
        let accounts = &self.accounts;
        self.certified.retain(|vm, _| accounts.contains_key(vm));
        self.certified.insert(vm.clone(), Arc::clone(identity));
        self.apply_limits(host, vm, self.certified_memory(vm));
    }

    /// Adds a lease. Its memory is then the limit, instead of that of a certificate.
    pub fn lease(&mut self, vm: &str, memory: u64, host: &Host) {
        self.leased.insert(vm.to_owned(), memory);
        self.apply_limits(host, vm, memory);
    }

    /// Removes a lease. The limit of the running sessions stays until it is next computed.
    pub fn end_lease(&mut self, vm: &str) {
        self.leased.remove(vm);
    }

    /// Maximum number of bytes of device memory that the sessions of a VM may have together;
    /// 0 for no limit.
    #[must_use]
    pub fn memory_limit(&self, host: &Host, vm: &str) -> u64 {
        memory(host, vm, self.certified_memory(vm))
    }

    /// Bytes of device memory that a VM's lease or, without one, its certificate allows; 0
    /// for no limit.
    fn certified_memory(&self, vm: &str) -> u64 {
        let certified = || self.certified.get(vm).map_or(0, |it| it.memory);
        self.leased.get(vm).copied().unwrap_or_else(certified)
    }

    /// Maximum number of concurrent sessions that a VM's certificate allows; 0 for no
    /// limit.
    #[must_use]
    pub fn certified_sessions(&self, vm: &str) -> u32 {
        self.certified
            .get(vm)
            .map_or(0, |identity| identity.sessions)
    }

    /// Maximum number of sessions of a VM, by the configuration and its certificate; 0 for
    /// no limit.
    #[must_use]
    pub fn session_limit(&self, host: &Host, vm: &str) -> u32 {
        match (host.sessions_of(vm), self.certified_sessions(vm)) {
            (0, one) | (one, 0) => one,
            (one, other) => one.min(other),
        }
    }

    /// Applies changed limits of the configuration.
    pub fn limit(&self, host: &Host) {
        for vm in self.accounts.keys() {
            self.apply_limits(host, vm, self.certified_memory(vm));
        }
    }

    /// Bytes of device memory that the sessions of a VM hold together.
    #[must_use]
    pub fn memory(&self, vm: &str) -> u64 {
        self.accounts
            .get(vm)
            .map_or(0, |tenant| tenant.ledger.account().used(Book::Device))
    }

    /// Records that a process serves the device of this VM. While it lives, no other
    /// process may serve that VM, and it may serve no other VM. A process of a unit
    /// `paragpu-device@VM` may serve only that VM: systemd placed it in the unit's control
    /// group, which it cannot leave. A claim without a process, which nobody could watch, is
    /// not recorded.
    ///
    /// # Errors
    /// One sentence.
    pub fn claim(&mut self, vm: &str, process: Option<DeviceProcess>) -> Result<(), String> {
        check_name(vm)?;
        self.processes.retain(|_, process| process.lives());
        let Some(process) = process else {
            return Ok(());
        };
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        if let Some(own) = vm_of_unit(&groups.unwrap_or_default())
            && own != vm
        {
            return Err(format!(
                "{process} belongs to the unit paragpu-device@{own}.service, which serves only \
                 the VM {own:?}"
            ));
        }
        let earlier = self.processes.iter().find(|(_, other)| other.is(&process));
        if let Some((other, _)) = earlier
            && other != vm
        {
            return Err(format!(
                "{process} serves the device of VM {other:?} already: each VM has a device \
                 process of its own"
            ));
        }
        match self.processes.get(vm) {
            Some(other) if other.is(&process) => {}
            Some(other) => {
                return Err(format!(
                    "{other} serves the device of a VM {vm:?} already: give each VM a name of its \
                     own (paragpu-qemu-device --vm)"
                ));
            }
            None => drop(self.processes.insert(vm.to_owned(), process)),
        }
        Ok(())
    }
}

/// Maximum number of bytes of device memory of a VM whose lease or certificate allows
/// `certified`; 0 for no limit.
fn memory(host: &Host, vm: &str, certified: u64) -> u64 {
    match (host.memory_of(vm), certified) {
        (0, one) | (one, 0) => one,
        (one, other) => one.min(other),
    }
}

fn limit(account: &Account, host: &Host, vm: &str, certified: u64) {
    account.limit_to(Book::Device, memory(host, vm, certified));
    account.limit_to(Book::Host, host.host_memory());
}

/// The VM of the unit `paragpu-device@VM` that a process with this `/proc/PID/cgroup` belongs
/// to. `None` if it was started in another way.
fn vm_of_unit(groups: &str) -> Option<&str> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    group.split('/').find_map(|part| {
        part.strip_prefix("paragpu-device@")?
            .strip_suffix(".service")
    })
}

/// Checks that a name cannot be mistaken for that of a user, address or context
/// identifier, whose limits would then apply.
fn check_name(vm: &str) -> Result<(), String> {
    if !is_vm_name(vm, |c| c.is_ascii_graphic()) {
        return Err(format!(
            "{:?} is not a valid VM name: use 1 to {MAX_VM_NAME} printable ASCII characters, no \
             blanks, and not an IP address",
            vm.chars().take(MAX_VM_NAME).collect::<String>()
        ));
    }
    Ok(())
}

/// Checks the name of a session that arrives or is restored: it can be printed, and is no
/// longer than the names that this host gives. These are a VM's of a device process, a
/// certificate or host.toml, `uid N`, `cid N` and addresses.
///
/// # Errors
/// One sentence.
pub fn check_tenant(vm: &str) -> Result<(), String> {
    // Debug output escapes whatever is invisible or changes other characters.
    let printable = |letter: char| "'\"\\".contains(letter) || letter.escape_debug().len() == 1;
    if (1..=MAX_VM_NAME).contains(&vm.len()) && vm.chars().all(printable) {
        return Ok(());
    }
    Err(format!(
        "the session is of {:?}, which is not a valid name of a VM, user or address: such a name \
         has 1 to {MAX_VM_NAME} bytes, all of them printable",
        vm.chars().take(MAX_VM_NAME).collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offers::Hold;
    use crate::received_fd::PeerKind;
    use paragpu_control::account::{Divider, Share};
    use paragpu_control::exchange::Offer;
    use paragpu_control::socket::Inbox;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Bytes of the GPU.
    const GPU: u64 = 1000;

    fn host(memory: u64) -> Host {
        let mut host = Host::default();
        host.limits.per_vm_memory.0 = memory;
        host
    }

    /// The share that a worker gets for a session.
    fn share(tenants: &mut Tenants, host: &Host, vm: &str, session: u64) -> Share {
        arrive(tenants, host, vm, (session, None))
    }

    /// The same for one that continues another session.
    fn arrive(tenants: &mut Tenants, host: &Host, vm: &str, sessions: (u64, Option<u64>)) -> Share {
        let gpu = Memory::Host {
            label: "software:0",
            bytes: GPU,
        };
        let (daemon, worker) = Control::pair().unwrap();
        tenants.open(host, vm, &gpu).unwrap();
        tenants.grant(vm, sessions, &gpu, (1, &daemon)).unwrap();
        let mut inbox = Inbox::default();
        worker.receive(&mut inbox, true).unwrap();
        let fds = std::mem::take(&mut inbox.fds).into_iter();
        let mut accounts = fds.map(|memory| Arc::new(Account::open(memory).unwrap()));
        match inbox.message().unwrap() {
            ToWorker::Quota {
                slot,
                gpu: Some(on_gpu),
            } => {
                Share::new(accounts.next().unwrap(), slot).on_gpu(accounts.next().unwrap(), on_gpu)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_session_that_moves_here_counts_once() {
        let (mut tenants, host) = (Tenants::new(Err(String::new())), host(10));
        let source = share(&mut tenants, &host, "a", 1);
        assert!(source.take(8));
        let failed = arrive(&mut tenants, &host, "a", (2, Some(1)));
        assert!(failed.take(8));
        // One that is announced again counts, and so does one that continues none.
        let again = arrive(&mut tenants, &host, "a", (3, Some(1)));
        let none = arrive(&mut tenants, &host, "a", (4, Some(99)));
        assert!(!again.take(3) && !none.take(3));
        tenants.release("a", 2);
        assert_eq!(tenants.memory("a"), 8);
        let destination = arrive(&mut tenants, &host, "a", (5, Some(1)));
        assert!(destination.take(9));
        tenants.release("a", 1);
        assert_eq!(tenants.memory("a"), 9);
        assert!(destination.take(1) && !destination.take(1) && !none.take(1));
        // Nor does the next one with this slot take its place.
        let next = share(&mut tenants, &host, "a", 6);
        assert!(!next.take(1));
    }

    #[test]
    fn sessions_of_a_vm_share_and_others_do_not() {
        let (mut tenants, mut host) = (Tenants::new(Err(String::new())), host(10));
        let one = share(&mut tenants, &host, "a", 1);
        let two = share(&mut tenants, &host, "a", 2);
        let other = share(&mut tenants, &host, "b", 3);
        assert!(one.take(8));
        assert!(!two.take(3));
        assert!(other.take(10));
        assert_eq!((tenants.memory("a"), tenants.memory("b")), (8, 10));
        host.limits.per_vm_memory.0 = 11;
        tenants.limit(&host);
        // As its worker asks.
        tenants.enlarge_part(&host, "a", "software:0", 11);
        assert!(two.take(3));
        // The first worker exits without freeing its 8 bytes, and a third takes its slot.
        tenants.release("a", 1);
        let three = share(&mut tenants, &host, "a", 4);
        assert!(three.take(8));
        tenants.release("a", 2);
        tenants.release("a", 4);
        assert_eq!(tenants.memory("a"), 0);
        assert_eq!(tenants.accounts.len(), 1);
    }

    /// How a worker asks for a larger part of the GPU.
    #[derive(Debug)]
    struct Asking(Arc<Mutex<Tenants>>, Host, &'static str);

    impl Divider for Asking {
        fn enlarge(&self, total: u64) -> Option<u64> {
            let Self(tenants, host, vm) = self;
            tenants.lock().enlarge_part(host, vm, "software:0", total)
        }
    }

    #[test]
    fn sessions_of_all_vms_fill_one_gpu() {
        let tenants = Arc::new(Mutex::new(Tenants::new(Err(String::new()))));
        let host = host(0);
        let arrive = |vm, sessions| {
            let mut share = arrive(&mut tenants.lock(), &host, vm, sessions);
            share.set_divider(Arc::new(Asking(Arc::clone(&tenants), host.clone(), vm)));
            share
        };
        let one = arrive("a", (1, None));
        let other = arrive("b", (2, None));
        assert!(one.take(900));
        assert_eq!((one.free(), other.free()), (100, 100));
        assert!(!other.take(101) && other.take(100));
        // A worker that is killed gives everything back.
        tenants.lock().release("a", 1);
        assert_eq!(other.free(), 900);
        // A session that moves within the GPU counts once.
        let again = arrive("b", (3, Some(2)));
        assert!(other.take(900) && again.take(1000) && other.free() == 0);
        tenants.lock().release("b", 2);
        assert_eq!((again.free(), tenants.lock().memory("b")), (0, 1000));
        let mut tenants = tenants.lock();
        tenants.release("b", 3);
        assert!(tenants.gpus.is_empty() && tenants.accounts.is_empty());
    }

    #[test]
    fn memory_that_is_lent_stays_charged() {
        let (mut tenants, host) = (Tenants::new(Err(String::new())), host(100));
        let one = share(&mut tenants, &host, "a", 1);
        let two = share(&mut tenants, &host, "a", 2);
        let offer = Offer {
            token: [1; 16],
            size: 60,
            domain: [0; 16],
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        let memory = ReceivedFd::new(file.into(), PeerKind::Worker);
        let room = tenants.room_for_offers();
        let offers = tenants.offers("a").unwrap();
        assert!(offers.add(1, offer, memory, room).is_some());
        assert!(offers.hold(2, 1, &[1; 16], Hold::Borrowed));
        assert!(one.take(60));
        // Nothing is charged twice.
        tenants.charge_lent("a");
        assert_eq!(tenants.memory("a"), 60);
        tenants.offers("a").unwrap().withdraw(1, &[1; 16], false);
        tenants.charge_lent("a");
        one.give_back(60);
        assert_eq!((one.lent(), two.lent()), (60, 0));
        assert!(!one.take(41));
        tenants.release("a", 1);
        assert_eq!((two.lent(), tenants.memory("a")), (60, 60));
        tenants.offers("a").unwrap().give_back(2, &[1; 16]);
        tenants.charge_lent("a");
        assert!(two.take(100));
    }

    fn process(pid: u32) -> Option<DeviceProcess> {
        let pidfd = crate::worker::pidfd(pid).unwrap();
        Some(DeviceProcess {
            pid: i32::try_from(pid).unwrap(),
            identity: peer::identity(&pidfd),
            pidfd,
        })
    }

    #[test]
    fn a_device_has_one_process_while_it_lives() {
        let mut tenants = Tenants::new(Err(String::new()));
        let own = std::process::id();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let other = child.id();
        assert_eq!(tenants.claim("a", process(other)), Ok(()));
        assert_eq!(tenants.claim("a", process(other)), Ok(()));
        let twice = tenants.claim("a", process(own)).unwrap_err();
        assert!(twice.contains(&format!("process {other}")), "{twice}");
        let second = tenants.claim("b", process(other)).unwrap_err();
        assert!(second.contains("\"a\" already"), "{second}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(tenants.claim("a", process(own)), Ok(()));
    }

    #[test]
    fn a_unit_serves_its_own_vm() {
        let unit =
            "0::/system.slice/system-paragpu\\x2ddevice.slice/paragpu-device@alpha-1.service";
        for (groups, vm) in [
            (format!("{unit}\n"), Some("alpha-1")),
            (format!("12:memory:/x\n{unit}/below\n"), Some("alpha-1")),
            (
                "0::/user.slice/user-0.slice/session-1.scope\n".to_owned(),
                None,
            ),
            (unit.replace("0::", "3:cpu:"), None),
            (String::new(), None),
        ] {
            assert_eq!(vm_of_unit(&groups), vm, "{groups}");
        }
    }

    #[test]
    fn names_of_other_tenants_are_refused() {
        let mut tenants = Tenants::new(Err(String::new()));
        let own = std::process::id();
        let long = "x".repeat(MAX_VM_NAME + 1);
        for name in ["", "uid 0", "cid 3", "10.0.0.1", "::1", "a\nb", &long] {
            assert!(tenants.claim(name, process(own)).is_err(), "{name}");
        }
        assert_eq!(tenants.claim(&long[1..], process(own)), Ok(()));
    }

    #[test]
    fn names_of_arriving_sessions_can_be_printed() {
        let long = "x".repeat(MAX_VM_NAME + 1);
        for name in [
            "uid 1000",
            "cid 3",
            "10.0.0.1",
            "fe80::1",
            "vm-1.a_b~",
            "büro 2",
            "a'\"\\",
            &long[1..],
        ] {
            assert_eq!(check_tenant(name), Ok(()), "{name}");
        }
        let hostile = [
            "",
            "\0\0",
            "a\nb",
            "\u{1b}[31m",
            "\u{9b}2J",
            "é\u{202e}",
            "a\u{200b}b",
            &long,
        ];
        for name in hostile {
            let reason = check_tenant(name).unwrap_err();
            assert!(!reason.contains(char::is_control), "{reason}");
            assert!(reason.len() < 700, "{reason}");
        }
    }
}
