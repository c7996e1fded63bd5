//! Sessions that take turns, on a clock that the test advances.

use paragpu_control::turn::OVERRUN;

use super::*;

/// A program. It launches batches of kernels, waits for the end of each batch, and then
/// pauses for its gap. Without a gap it always has work.
struct Program {
    session: u64,
    kernel: Duration,
    gap: Option<Duration>,
    /// Kernels of the batch that are left.
    left: u32,
    /// It has no work until then.
    idle: Option<Instant>,
    /// The time of its kernels.
    worked: Duration,
    turn: Option<Option<Instant>>,
    over: Option<Instant>,
}

/// Kernels of a batch.
const BATCH: u32 = 16;

const STEP: Duration = Duration::from_micros(100);

fn program(session: u64, kernel: u64) -> Program {
    Program {
        session,
        kernel: Duration::from_micros(kernel),
        gap: None,
        left: BATCH,
        idle: None,
        worked: Duration::ZERO,
        turn: None,
        over: None,
    }
}

fn share(weight: u32) -> TimeShare {
    TimeShare {
        weight: weight.into(),
        ..TimeShare::default()
    }
}

impl Program {
    /// A step of its worker.
    fn step(&mut self, shares: &mut Shares, now: Instant) {
        if self.idle.is_some_and(|idle| idle <= now) {
            self.idle = None;
            self.left = BATCH;
        }
        let Some(until) = self.turn else {
            if self.idle.is_none() {
                shares.handle_request(self.session, TurnRequest::Wanted, now);
            }
            return;
        };
        if self.over.is_some_and(|over| over <= now) {
            self.over = None;
            self.left -= 1;
            if self.left == 0 {
                match self.gap {
                    Some(gap) => self.idle = Some(now + gap),
                    None => self.left = BATCH,
                }
            }
        }
        // A kernel that began runs to its end.
        let ends = self.idle.is_some() || until.is_some_and(|until| until <= now);
        if self.over.is_none() && ends {
            self.turn = None;
            shares.handle_request(self.session, TurnRequest::Over, now);
            return;
        }
        self.worked += STEP;
        self.over = self.over.or(Some(now + self.kernel));
    }
}

/// Runs programs for so long.
fn run(shares: &mut Shares, programs: &mut [Program], from: Instant, length: Duration) -> Instant {
    let mut now = from;
    while now < from + length {
        for program in programs.iter_mut() {
            program.step(shares, now);
        }
        let (words, _) = shares.settle(now);
        for (session, word) in words {
            let program = programs
                .iter_mut()
                .find(|one| one.session == session)
                .unwrap();
            program.turn = match word {
                Turn::Yours => Some(None),
                Turn::Ends(within) => Some(Some(now + Duration::from_micros(within))),
                other => panic!("{other:?}"),
            };
        }
        now += STEP;
    }
    now
}

fn paced(weights: &[TimeShare]) -> (Shares, Vec<Program>, Instant) {
    let (mut shares, now) = (Shares::default(), Instant::now());
    let mut programs = Vec::new();
    for (number, share) in (1..).zip(weights) {
        let vm = format!("vm{number}");
        shares.join(number, &vm, "cuda:0");
        shares.give(Owner::Vm(vm), *share);
        // Kernels of different lengths.
        programs.push(program(number, 300 + 700 * number));
    }
    let turns = shares.follow(&Host::default(), now);
    assert!(turns.iter().all(|(_, word)| *word == Turn::Paced));
    assert_eq!(turns.len(), weights.len());
    (shares, programs, now)
}

fn part(program: &Program, of: Duration) -> f64 {
    program.worked.as_secs_f64() / of.as_secs_f64()
}

#[test]
fn time_follows_weights_in_every_two_seconds() {
    for weights in [&[10, 90][..], &[30, 70], &[25, 25, 25, 25], &[1, 1, 98]] {
        let all: Vec<TimeShare> = weights.iter().map(|weight| share(*weight)).collect();
        let (mut shares, mut programs, mut now) = paced(&all);
        let window = Duration::from_secs(2);
        for _ in 0..5 {
            now = run(&mut shares, &mut programs, now, window);
            for (program, weight) in programs.iter_mut().zip(weights) {
                let wanted = f64::from(*weight) / 100.0;
                let got = part(program, window);
                assert!(
                    (got - wanted).abs() < 0.02,
                    "{weights:?}: {got} for {wanted}"
                );
                program.worked = Duration::ZERO;
            }
        }
    }
}

#[test]
fn pauses_between_batches_cost_no_share() {
    // The heavy program has work for 16 of 18 ms, so it can have at most 0.89. In each of
    // its pauses the light one runs a kernel, which is not interrupted.
    let (mut shares, mut programs, now) = paced(&[share(10), share(90)]);
    programs[1].kernel = Duration::from_millis(1);
    programs[1].gap = Some(Duration::from_millis(2));
    let window = Duration::from_secs(2);
    run(&mut shares, &mut programs, now, window);
    let heavy = part(&programs[1], window);
    assert!(heavy > 0.82, "{heavy}");
    assert!(part(&programs[0], window) > 0.1);
}

#[test]
fn an_idle_owner_catches_up_little() {
    let (mut shares, mut programs, now) = paced(&[share(50), share(50)]);
    let now = run(
        &mut shares,
        &mut programs[..1],
        now,
        Duration::from_secs(60),
    );
    programs[0].worked = Duration::ZERO;
    let window = Duration::from_millis(500);
    run(&mut shares, &mut programs, now, window);
    // It gets CREDIT before the other, then each has half.
    let wanted = (window - CREDIT).as_secs_f64() / 2.0 / window.as_secs_f64();
    let got = part(&programs[0], window);
    assert!((got - wanted).abs() < 0.03, "{got} for {wanted}");
}

#[test]
fn an_idle_gpu_is_used_fully_and_absence_is_not_owed() {
    let (mut shares, mut programs, now) = paced(&[share(10), share(90)]);
    let window = Duration::from_secs(2);
    let now = run(&mut shares, &mut programs[..1], now, window);
    assert!(part(&programs[0], window) > 0.99);
    programs[0].worked = Duration::ZERO;
    // The other one starts, and gets its share of the time from now on.
    run(&mut shares, &mut programs, now, window);
    assert!((part(&programs[1], window) - 0.9).abs() < 0.02);
    assert!((part(&programs[0], window) - 0.1).abs() < 0.02);
}

#[test]
fn a_cap_holds_on_an_idle_gpu() {
    let cap = TimeShare {
        cap: 30,
        ..share(100)
    };
    let (mut shares, mut programs, now) = paced(&[cap]);
    let window = Duration::from_secs(2);
    run(&mut shares, &mut programs, now, window);
    let got = part(&programs[0], window);
    assert!((got - 0.3).abs() < 0.02, "{got}");
}

#[test]
fn a_higher_priority_goes_first() {
    let first = TimeShare {
        priority: 1,
        ..share(1)
    };
    let (mut shares, mut programs, now) = paced(&[share(1000), first]);
    let now = run(
        &mut shares,
        &mut programs[..1],
        now,
        Duration::from_millis(50),
    );
    let low = programs[0].worked;
    run(&mut shares, &mut programs, now, Duration::from_secs(1));
    // No more than the kernel that ran.
    assert!(programs[0].worked - low <= programs[0].kernel + STEP * 2);
}

#[test]
fn sessions_of_a_vm_share_its_time() {
    let (mut shares, now) = (Shares::default(), Instant::now());
    shares.join(1, "a", "cuda:0");
    shares.join(2, "a", "cuda:0");
    shares.join(3, "b", "cuda:0");
    shares.join(4, "b", "cuda:1");
    shares.give(Owner::Vm("a".into()), share(100));
    let turns = shares.follow(&Host::default(), now);
    assert_eq!(
        turns.len(),
        3,
        "nothing changes on the other GPU: {turns:?}"
    );
    let mut programs = [program(1, 500), program(2, 500), program(3, 500)];
    let window = Duration::from_secs(2);
    run(&mut shares, &mut programs, now, window);
    for (program, wanted) in programs.iter().zip([0.25, 0.25, 0.5]) {
        assert!((part(program, window) - wanted).abs() < 0.02);
        let info = shares.info(program.session).unwrap();
        assert!((info.seconds / window.as_secs_f64() - wanted).abs() < 0.02);
    }
    assert_eq!(shares.info(4), None);
}

/// Has programs work from now on, and returns what each gets of so much time.
fn parts(
    shares: &mut Shares,
    programs: &mut [Program],
    now: &mut Instant,
    length: Duration,
) -> Vec<f64> {
    for program in programs.iter_mut() {
        program.worked = Duration::ZERO;
    }
    *now = run(shares, programs, *now, length);
    programs.iter().map(|one| part(one, length)).collect()
}

/// Each part is the wanted one.
fn assert_near(got: &[f64], wanted: &[f64], within: f64) {
    assert_eq!(got.len(), wanted.len());
    for (one, wanted) in got.iter().zip(wanted) {
        assert!((one - wanted).abs() < within, "{got:?}, not {wanted}");
    }
}

#[test]
fn new_sessions_of_a_vm_do_not_starve_its_old_one() {
    let (mut shares, mut now) = (Shares::default(), Instant::now());
    for session in 1..=3 {
        shares.join(session, "a", "cuda:0");
    }
    shares.give(Owner::Vm("a".into()), share(100));
    shares.follow(&Host::default(), now);
    let mut programs = [1, 2, 3].map(|session| program(session, 500));
    parts(
        &mut shares,
        &mut programs[..1],
        &mut now,
        Duration::from_secs(20),
    );
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert_near(&got, &[1.0 / 3.0; 3], 0.03);
    // Nor one that was away meanwhile.
    (programs[0].turn, programs[0].over) = (None, None);
    shares.handle_request(1, TurnRequest::Over, now);
    parts(
        &mut shares,
        &mut programs[1..],
        &mut now,
        Duration::from_secs(20),
    );
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert_near(&got, &[1.0 / 3.0; 3], 0.03);
}

#[test]
fn a_new_owner_does_not_starve_others_of_its_priority() {
    let first = TimeShare {
        priority: 1,
        ..share(100)
    };
    // The first one waits all the time, because it has the lowest priority.
    let (mut shares, mut programs, mut now) = paced(&[share(100), first, first]);
    let got = parts(
        &mut shares,
        &mut programs[..2],
        &mut now,
        Duration::from_secs(20),
    );
    assert!(got[1] > 0.98, "{got:?}");
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert_near(&got[1..], &[0.5; 2], 0.05);
    // Without its priority, an owner does not pay for the time that it had.
    for (vm, weight) in [("vm2", 100), ("vm3", 200)] {
        shares.give(Owner::Vm(vm.into()), share(weight));
    }
    shares.follow(&Host::default(), now);
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert_near(&got, &[0.25, 0.25, 0.5], 0.05);
}

#[test]
fn the_wait_for_a_cap_gives_nobody_a_start() {
    let cap = TimeShare {
        cap: 1,
        ..share(100)
    };
    let (mut shares, mut programs, mut now) = paced(&[cap, share(100), share(100)]);
    // It waits for 50 s for its next kernel.
    programs[0].kernel = Duration::from_millis(500);
    parts(
        &mut shares,
        &mut programs[..2],
        &mut now,
        Duration::from_secs(30),
    );
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert_near(&got[1..], &[0.5; 2], 0.07);
    // Nor the end of the cap: it gets CREDIT and its share.
    shares.give(Owner::Vm("vm1".into()), share(100));
    shares.follow(&Host::default(), now);
    programs[0].kernel = Duration::from_millis(1);
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(3));
    assert_near(&got, &[1.0 / 3.0; 3], 0.07);
}

#[test]
fn a_greater_weight_counts_at_once() {
    let (mut shares, mut programs, mut now) = paced(&[share(1), share(1000)]);
    programs[0].kernel = Duration::from_millis(500);
    parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    // By its old weight, it would have to wait for 500 s.
    shares.give(Owner::Vm("vm1".into()), share(1000));
    shares.follow(&Host::default(), now);
    programs[0].kernel = Duration::from_millis(1);
    parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    let got = parts(&mut shares, &mut programs, &mut now, Duration::from_secs(2));
    assert!((got[0] - 0.5).abs() < 0.05, "{got:?}");
}

#[test]
fn a_session_whose_kernel_stays_gets_more_turns() {
    let (mut shares, programs, mut now) = paced(&[share(1), share(1000)]);
    let [holder, other] = [programs[0].session, programs[1].session];
    let begun = now;
    shares.handle_request(holder, TurnRequest::Wanted, now);
    shares.settle(now);
    shares.handle_request(other, TurnRequest::Wanted, now);
    shares.settle(now);
    now += QUANTUM + OVERRUN;
    // No earlier call of `settle` has found that it is late.
    shares.handle_request(holder, TurnRequest::Wanted, now);
    assert_eq!(shares.settle(now).0, [(other, Turn::Yours)]);
    now += OVERRUN / 2;
    shares.handle_request(other, TurnRequest::Over, now);
    assert_eq!(shares.settle(now).0, [(holder, Turn::Yours)]);
    shares.handle_request(other, TurnRequest::Wanted, now);
    // Nobody waits for the kernel again. It is charged for all of the time, once.
    let late = shares.settle(now).1.unwrap();
    assert!(late <= now + QUANTUM);
    now = late;
    assert_eq!(shares.settle(now).0, [(other, Turn::Yours)]);
    let used = (now - begun).as_secs_f64();
    assert_eq!(shares.info(holder).unwrap().seconds, used);
    // It gets a turn although the other one always has work.
    shares.handle_request(holder, TurnRequest::Wanted, now);
    assert_eq!(shares.settle(now), (vec![], Some(now + OVERRUN)));
    now += OVERRUN;
    assert_eq!(shares.settle(now).0, [(other, Turn::Ends(0))]);
    shares.handle_request(other, TurnRequest::Over, now);
    shares.handle_request(other, TurnRequest::Wanted, now);
    let quantum = Turn::Ends(micros(QUANTUM));
    assert_eq!(
        shares.settle(now),
        (
            vec![(holder, Turn::Yours), (holder, quantum)],
            Some(now + QUANTUM)
        )
    );
    now += QUANTUM;
    assert_eq!(shares.settle(now).0, [(other, Turn::Yours)]);
    // Its kernel has ended, and it wants nothing more.
    shares.handle_request(holder, TurnRequest::Over, now);
    shares.handle_request(other, TurnRequest::Over, now);
    assert_eq!(shares.settle(now), (vec![], None));
}

#[test]
fn others_launch_at_once_while_work_waits_for_its_program() {
    let (mut shares, _, mut now) = paced(&[share(100), share(100)]);
    let (holder, other) = (1, 2);
    shares.handle_request(holder, TurnRequest::Wanted, now);
    assert_eq!(shares.settle(now).0, [(holder, Turn::Yours)]);
    shares.handle_request(other, TurnRequest::Wanted, now);
    shares.settle(now);
    shares.handle_request(holder, TurnRequest::Waits, now);
    assert_eq!(shares.settle(now).0, [(other, Turn::Yours)]);
    // It is charged until its work is complete, and may want another turn.
    now += QUANTUM;
    shares.handle_request(other, TurnRequest::Over, now);
    shares.handle_request(holder, TurnRequest::Wanted, now);
    assert_eq!(shares.settle(now).0, [(holder, Turn::Yours)]);
    let seconds = |session| shares.info(session).unwrap().seconds;
    assert_eq!(seconds(holder), QUANTUM.as_secs_f64());
    assert_eq!(seconds(other), QUANTUM.as_secs_f64());
}

#[test]
fn a_sessions_share_moves_with_it() {
    let (mut shares, now) = (Shares::default(), Instant::now());
    shares.join(1, "a", "cuda:0");
    shares.join(2, "a", "cuda:0");
    shares.give(Owner::Session(1), share(30));
    shares.join(3, "a", "cuda:1");
    shares.hand_on(1, 3);
    shares.hand_on(2, 1);
    shares.leave(1, now);
    shares.follow(&Host::default(), now);
    assert_eq!(shares.info(3).unwrap().share, share(30));
    assert_eq!(shares.info(2), None, "nobody has a share on its GPU");
}

#[test]
fn a_lease_has_time_in_proportion_to_its_memory() {
    let (mut shares, now) = (Shares::default(), Instant::now());
    for (session, vm, gib) in [(1, "lease-0-1", 20), (2, "lease-0-2", 60)] {
        shares.lease(vm, gib << 30, 0);
        shares.join(session, vm, "cuda:0");
    }
    let mut host = Host::default();
    assert_eq!(shares.follow(&host, now), [], "leases are not asked to");
    host.lease.share_time = true;
    assert_eq!(shares.follow(&host, now).len(), 2);
    assert_eq!(shares.info(1).unwrap().share, share(20));
    assert_eq!(shares.info(2).unwrap().share, share(60));
    shares.give(Owner::Vm("lease-0-2".into()), share(7));
    shares.follow(&host, now);
    assert_eq!(shares.info(2).unwrap().share, share(7));
}

#[test]
fn leases_of_parts_of_a_gib_have_time_in_proportion() {
    let (mut shares, now, mut host) = (Shares::default(), Instant::now(), Host::default());
    host.lease.share_time = true;
    let leases: [(u64, f64); 4] = [(512, 0.5), (1536, 1.5), (20 << 10, 20.0), (1 << 30, 1000.0)];
    for (number, (mib, _)) in (1..).zip(leases) {
        let vm = format!("lease-0-{number}");
        shares.lease(&vm, mib << 20, 0);
        shares.join(number, &vm, "cuda:0");
    }
    shares.follow(&host, now);
    for (number, (_, weight)) in (1..).zip(leases) {
        assert_eq!(shares.info(number).unwrap().share.weight, weight);
    }
}

#[test]
fn a_lease_has_the_weight_that_it_was_claimed_with() {
    let (mut shares, now, host) = (Shares::default(), Instant::now(), Host::default());
    shares.lease("lease-0-1", 60 << 30, 250);
    shares.lease("lease-0-2", 20 << 30, 0);
    shares.join(1, "lease-0-1", "cuda:0");
    shares.join(2, "lease-0-2", "cuda:0");
    assert_eq!(shares.follow(&host, now).len(), 2);
    assert_eq!(shares.info(1).unwrap().share, share(250));
    assert_eq!(shares.info(2).unwrap().share, TimeShare::default());
}

#[test]
fn a_worker_that_keeps_its_turn_does_not_block_others() {
    let (mut shares, programs, now) = paced(&[share(100), share(100)]);
    let [holder, other] = [programs[0].session, programs[1].session];
    shares.handle_request(holder, TurnRequest::Wanted, now);
    shares.settle(now);
    shares.handle_request(other, TurnRequest::Wanted, now);
    let (words, next) = shares.settle(now);
    let quantum = u64::try_from(QUANTUM.as_micros()).unwrap();
    assert_eq!(words, [(holder, Turn::Ends(quantum))]);
    let next = next.unwrap();
    assert_eq!(next, now + QUANTUM + OVERRUN);
    assert_eq!(shares.settle(next).0, [(other, Turn::Yours)]);
    // It is charged for all the time until it reports the end, or dies.
    shares.leave(holder, now);
    shares.handle_request(other, TurnRequest::Over, next);
    assert_eq!(shares.settle(next).0, []);
}

#[test]
fn turns_end_with_the_last_share() {
    let (mut shares, _, now) = paced(&[share(10), share(90)]);
    shares.leave(1, now);
    assert_eq!(shares.follow(&Host::default(), now), []);
    shares.join(3, "plain", "cuda:0");
    assert_eq!(shares.follow(&Host::default(), now), [(3, Turn::Paced)]);
    shares.leave(2, now);
    assert_eq!(shares.follow(&Host::default(), now), [(3, Turn::Free)]);
    assert_eq!(shares.info(3), None);
}

/// A host on which these VMs have shares for good.
fn host(shares: &[(&str, TimeShare)]) -> Host {
    let mut host = Host::default();
    for (vm, share) in shares {
        let of_vm = host.vm.entry((*vm).to_owned()).or_default();
        of_vm.weight = share.weight as u32;
        (of_vm.cap, of_vm.priority) = (share.cap, share.priority);
    }
    host
}

/// Runs programs of which the last one's VM ends its session whenever its kernel has ended, and
/// starts another. Returns the time that this VM had.
fn run_restarting(
    host: &Host,
    programs: &mut [Program],
    shares: &mut Shares,
    vm: &str,
    length: Duration,
) -> Duration {
    let begun = Instant::now();
    let (mut now, mut worked) = (begun, Duration::ZERO);
    let mut session = 100;
    let kernel = programs.last().unwrap().kernel;
    while now < begun + length {
        session += 1;
        let mut own = program(session, 0);
        own.kernel = kernel;
        *programs.last_mut().unwrap() = own;
        shares.join(session, vm, "cuda:0");
        shares.follow(host, now);
        while programs.last().unwrap().worked < kernel && now < begun + length {
            now = run(shares, programs, now, STEP);
        }
        worked += programs.last().unwrap().worked;
        shares.leave(session, now);
        shares.follow(host, now);
    }
    worked
}

#[test]
fn restarts_do_not_evade_a_cap() {
    let cap = TimeShare {
        cap: 10,
        ..share(100)
    };
    let (host, mut shares) = (host(&[("a", cap)]), Shares::default());
    let length = Duration::from_secs(5);
    let worked = run_restarting(&host, &mut [program(0, 50_000)], &mut shares, "a", length);
    let got = worked.as_secs_f64() / length.as_secs_f64();
    assert!(got < 0.12, "{got}");
}

#[test]
fn restarts_do_not_evade_a_weight() {
    let host = host(&[("a", share(10)), ("b", share(90))]);
    let (mut shares, length) = (Shares::default(), Duration::from_secs(5));
    shares.join(1, "b", "cuda:0");
    shares.follow(&host, Instant::now());
    let mut programs = [program(1, 1_000), program(0, 20_000)];
    let worked = run_restarting(&host, &mut programs, &mut shares, "a", length);
    let got = worked.as_secs_f64() / length.as_secs_f64();
    assert!((got - 0.1).abs() < 0.03, "{got}");
}

#[test]
fn a_debt_is_remembered_until_it_is_paid() {
    let cap = TimeShare {
        cap: 50,
        ..share(100)
    };
    let (host, mut shares, mut now) = (host(&[("a", cap)]), Shares::default(), Instant::now());
    let mut programs = [program(1, 100_000)];
    shares.join(1, "a", "cuda:0");
    shares.follow(&host, now);
    now = run(&mut shares, &mut programs, now, Duration::from_millis(100));
    shares.leave(1, now);
    shares.follow(&host, now);
    assert_eq!(shares.gpus.len(), 1);
    now += Duration::from_millis(300);
    shares.follow(&host, now);
    assert!(shares.gpus.is_empty());
    // Nor are the debts of very many.
    for number in 0..2 * MAX_ABSENT as u64 {
        let vm = format!("vm{number}");
        shares.join(number, &vm, "cuda:0");
    }
    shares.follow(&Host::default(), now);
    let gpu = shares.gpus.get_mut("cuda:0").unwrap();
    gpu.runners.retain(|number, _| *number == 0);
    for clock in gpu.clocks.values_mut() {
        clock.time = 1.0;
    }
    shares.follow(&Host::default(), now);
    assert_eq!(shares.gpus["cuda:0"].clocks.len(), MAX_ABSENT + 1);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// For any weights and kernels: a session that always has work gets its share,
        /// and the GPU is never idle.
        #[test]
        fn work_gets_its_share(
            programs in proptest::collection::vec((10_u32..=90, 100_u64..4_000), 2..5)
        ) {
            let weights: Vec<TimeShare> = programs.iter().map(|(weight, _)| share(*weight)).collect();
            let (mut shares, mut running, now) = paced(&weights);
            for (program, (_, kernel)) in running.iter_mut().zip(&programs) {
                program.kernel = Duration::from_micros(*kernel);
            }
            let warm = Duration::from_millis(200);
            let now = run(&mut shares, &mut running, now, warm);
            for program in &mut running {
                program.worked = Duration::ZERO;
            }
            let window = Duration::from_secs(2);
            run(&mut shares, &mut running, now, window);
            let sum: f64 = weights.iter().map(|share| share.weight).sum();
            let mut used = 0.0;
            for (program, share) in running.iter().zip(&weights) {
                let (got, wanted) = (part(program, window), share.weight / sum);
                prop_assert!((got - wanted).abs() < 0.02, "{got} for {wanted}");
                used += got;
            }
            // A step passes from one turn to the next.
            prop_assert!(used > 0.97, "{used}");
        }
    }
}
