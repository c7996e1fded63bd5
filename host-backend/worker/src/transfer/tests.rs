//! Sessions on the software GPU: written, and read on another one.

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::sync::Arc;

use paragpu_communicator::Nowhere;
use paragpu_control::account::Share;
use paragpu_device::Platform;
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::handle::*;
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::table::*;
use paragpu_protocol::types::{ArrayShape, LinearResource, Sampling, TextureResource, TextureSpec};
use proptest::prelude::*;

use super::precopy::{PreCopy, owners};
use super::state::StateError;
use crate::live::{Name, Recorded};
use crate::session::{Session, Setup};

const ORDINAL: u32 = 15;
pub(super) const PTX: &[u8] = b"
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b32 counter[64] = {7, 8, 9};
.visible .const .align 4 .f32 factor = 0f40000000;
.visible .entry kernel(.param .u64 out)
{
    ret;
}
";

/// The shape of the tests' arrays.
pub(super) const SHAPE: ArrayShape = ArrayShape {
    width: 33,
    height: 17,
    depth: 0,
    format: 0x20,
    channels: 2,
    flags: 2,
    levels: 0,
};

/// Serializes tests: a session's addresses are fixed.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

pub(super) fn session(cores: u32, memory: u64) -> Session {
    with_options(Options {
        cores,
        memory,
        ..Options::default()
    })
}

/// A session whose memory can be handed over.
pub(super) fn shareable() -> Session {
    limited(Share::default())
}

/// The same, with a share of its VM's memory.
pub(super) fn limited(share: Share) -> Session {
    let options = Options {
        cores: 1,
        memory: 1 << 30,
        shareable: true,
        ..Options::default()
    };
    with(options, share)
}

fn with_options(options: Options) -> Session {
    with(options, Share::default())
}

fn with(options: Options, share: Share) -> Session {
    let platform = SoftwarePlatform::with_options(options);
    let regions = Regions::of(ORDINAL).unwrap();
    let device = platform.open(0, regions).unwrap();
    let snapshot = platform.snapshot(0).unwrap();
    let setup = Setup {
        share,
        ..Setup::new(device, snapshot, ORDINAL, regions)
    };
    Session::new(setup, Arc::new(Nowhere), None)
}

pub(super) fn settle(session: &mut Session) {
    while !session.gpu.context_query().unwrap() {}
}

pub(super) fn write(session: &mut Session) -> Vec<u8> {
    settle(session);
    let file = tempfile::tempfile().unwrap();
    session.write_into(&file, None).unwrap();
    bytes_of(file)
}

pub(super) fn bytes_of(mut file: File) -> Vec<u8> {
    let mut state = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut state).unwrap();
    state
}

/// A file with these bytes.
pub(super) fn file_of(state: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(state).unwrap();
    file.rewind().unwrap();
    file
}

pub(super) fn read(session: &mut Session, state: &[u8]) -> Result<u64, StateError> {
    session.read_file(&file_of(state))
}

fn live(session: &Session) -> Vec<(Name, bool, Recorded)> {
    session
        .objects
        .live
        .in_order()
        .map(|(name, creates, call)| (name, creates, call.clone()))
        .collect()
}

pub(super) fn contents(session: &mut Session) -> Vec<(super::regions::Chunk, blake3::Hash)> {
    let chunks = session.chunks().unwrap();
    let mut mover = super::mover::Mover::new(session).unwrap();
    let mut all = Vec::new();
    mover
        .read_all(session, &chunks, |chunk, bytes| {
            all.push((*chunk, blake3::hash(bytes)));
            Ok(())
        })
        .unwrap();
    mover.release(session);
    all
}

/// Random operations of a program.
#[derive(Debug, Clone)]
enum Step {
    Create(u8, u64),
    Destroy(u8, u64),
    Fill(u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u8..9, 0_u64..6).prop_map(|(kind, at)| Step::Create(kind, at)),
        2 => (0_u8..9, 0_u64..6).prop_map(|(kind, at)| Step::Destroy(kind, at)),
        2 => (0_u64..6, any::<u32>()).prop_map(|(at, value)| Step::Fill(at, value)),
    ];
    proptest::collection::vec(step, 1..60)
}

struct Program {
    session: Session,
    /// Handles are never reused.
    next: u64,
    named: std::collections::BTreeMap<(u8, u64), u64>,
}

impl Program {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Create(kind, at) => self.create(kind, at),
            Step::Destroy(kind, at) => self.destroy(kind, at),
            Step::Fill(at, value) => self.fill(at, value),
        }
    }

    fn create(&mut self, kind: u8, at: u64) {
        if self.named.contains_key(&(kind, at)) {
            return;
        }
        let regions = self.session.gpu.regions();
        let handle = self.next;
        let array = self.named.get(&(3, at)).copied();
        let module = self.named.get(&(6, at)).copied();
        let memory = self.named.get(&(0, at)).copied();
        let hash = *blake3::hash(PTX).as_bytes();
        let second = regions.arena + (100 + at) * CHUNK;
        let call = match (kind, array, module) {
            (0, ..) => Recorded::of(&MemMap {
                address: DeviceAddress(regions.arena + at * 4 * CHUNK),
                size: (1 + handle % 3) * CHUNK,
            }),
            (1, ..) => Recorded::of(&StreamCreate {
                stream: StreamHandle(handle),
                flags: 1,
                priority: 0,
            }),
            (2, ..) => Recorded::of(&EventCreate {
                event: EventHandle(handle),
                flags: 0,
            }),
            (3, ..) => Recorded::of(&ArrayCreate {
                array: ArrayHandle(handle),
                shape: SHAPE,
            }),
            (4, Some(array), _) => Recorded::of(&TextureCreate {
                texture: TextureHandle(handle),
                spec: TextureSpec {
                    resource: TextureResource::Array(ArrayHandle(array)),
                    sampling: sampling(),
                    view: no_view(),
                },
            }),
            (5, Some(array), _) => Recorded::of(&SurfaceCreate {
                surface: SurfaceHandle(handle),
                array: ArrayHandle(array),
                level: 0,
            }),
            (6, ..) => Recorded::of(&ModuleLoad {
                module: ModuleHandle(handle),
                hash,
                options: Bytes(&[]),
            }),
            (7, _, Some(module)) => Recorded::of(&FunctionGet {
                function: FunctionHandle(handle),
                module: ModuleHandle(module),
                name: Text("kernel"),
            }),
            (8, ..) => match memory {
                Some(memory) => Recorded::of(&MemAlias {
                    address: AliasAddress(second),
                    size: CHUNK,
                    memory: DeviceAddress(memory),
                    access: 3,
                }),
                None => return,
            },
            _ => return,
        };
        self.session.perform(&call).unwrap();
        self.next += 1;
        let name = match kind {
            0 => regions.arena + at * 4 * CHUNK,
            8 => second,
            _ => handle,
        };
        self.named.insert((kind, at), name);
    }

    fn destroy(&mut self, kind: u8, at: u64) {
        // The textures and surfaces of an array may outlive it.
        if kind == 7 {
            return;
        }
        let Some(handle) = self.named.remove(&(kind, at)) else {
            return;
        };
        let call = match kind {
            0 => {
                // Its alias is destroyed with it.
                self.named.remove(&(8, at));
                Recorded::of(&MemUnmap {
                    address: DeviceAddress(handle),
                })
            }
            8 => Recorded::of(&MemAliasEnd {
                address: AliasAddress(handle),
            }),
            1 => Recorded::of(&StreamDestroy {
                stream: StreamHandle(handle),
            }),
            2 => Recorded::of(&EventDestroy {
                event: EventHandle(handle),
            }),
            3 => Recorded::of(&ArrayDestroy {
                array: ArrayHandle(handle),
            }),
            4 => Recorded::of(&TextureDestroy {
                texture: TextureHandle(handle),
            }),
            5 => Recorded::of(&SurfaceDestroy {
                surface: SurfaceHandle(handle),
            }),
            _ => {
                self.named.remove(&(7, at));
                Recorded::of(&ModuleUnload {
                    module: ModuleHandle(handle),
                })
            }
        };
        self.session.perform(&call).unwrap();
    }

    fn fill(&mut self, at: u64, value: u32) {
        if let Some(&event) = self.named.get(&(2, at)) {
            let stream = StreamHandle(self.named.get(&(1, at)).copied().unwrap_or(0));
            let event = EventHandle(event);
            self.session
                .perform(&Recorded::of(&EventRecord { event, stream }))
                .unwrap();
        }
        // By its second address, if it has one.
        let second = self.named.get(&(8, at));
        let memory = second.or(self.named.get(&(0, at))).copied();
        let variable = self.named.get(&(6, at)).map(|&module| {
            let global = GlobalGet {
                module: ModuleHandle(module),
                name: Text("counter"),
            };
            let session = &mut self.session;
            let modules = &session.objects.modules;
            modules
                .global_get(&mut session.gpu, &global)
                .unwrap()
                .address
        });
        for destination in memory.into_iter().chain(variable) {
            self.session
                .perform(&Recorded::of(&Memset {
                    destination,
                    pitch: 0,
                    value,
                    element: 4,
                    width: 64,
                    height: 1,
                    stream: StreamHandle(0),
                }))
                .unwrap();
        }
    }
}

pub(super) fn sampling() -> Sampling {
    Sampling {
        address_modes: [1; 3],
        ..Sampling::NEAREST
    }
}

pub(super) fn no_view() -> paragpu_protocol::types::ResourceView {
    paragpu_protocol::types::ResourceView {
        format: 0,
        extent: [0; 3],
        levels_layers: paragpu_protocol::codec::decode_all(&[0; 16]).unwrap(),
    }
}

/// Stores an image on the session's host. Returns its hash.
pub(super) fn store(session: &mut Session, image: &[u8]) -> [u8; 32] {
    let hash = *blake3::hash(image).as_bytes();
    let size = image.len() as u64;
    session
        .objects
        .modules
        .images()
        .write(&hash, size, 0, image)
        .unwrap();
    hash
}

fn program(steps: &[Step]) -> Program {
    let mut session = session(2, 1 << 30);
    store(&mut session, PTX);
    let mut program = Program {
        session,
        next: 100,
        named: std::collections::BTreeMap::new(),
    };
    steps.iter().for_each(|step| program.step(step));
    program
}

fn values(session: &Session, program: &std::collections::BTreeMap<(u8, u64), u64>) -> Vec<u64> {
    program
        .iter()
        .filter_map(|(&(kind, _), &handle)| match kind {
            4 => Some(session.objects.textures.texture(handle).unwrap()),
            5 => Some(session.objects.textures.surface(handle).unwrap()),
            _ => None,
        })
        .collect()
}

/// The bytes that a destination has, by object and offset.
struct Copy {
    bytes: std::collections::HashMap<(Name, u64), u8>,
    objects: std::collections::BTreeMap<Name, Recorded>,
}

impl Copy {
    fn new(session: &mut Session) -> Self {
        Self {
            bytes: std::collections::HashMap::new(),
            objects: created(session),
        }
    }

    /// Offsets of bytes that are compared, the same for any division into chunks: all
    /// bytes would be too many.
    fn places(chunk: &super::regions::Chunk) -> impl Iterator<Item = usize> {
        let (start, end) = (chunk.offset, chunk.offset + chunk.size);
        let pages = (start / 4096..end.div_ceil(4096)).map(|page| page * 4096);
        pages
            .flat_map(|page| [0, 4, 100, 252].map(|at| page + at))
            .filter(move |at| (start..end).contains(at))
            .map(move |at| (at - start) as usize)
    }

    fn take(&mut self, chunk: &super::regions::Chunk, bytes: &[u8], zeros: bool) {
        if !zeros && !chunk.is_variable() && bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let (name, offset) = (chunk.owner(), chunk.offset);
        for place in Self::places(chunk) {
            self.bytes
                .insert((name, offset + place as u64), bytes[place]);
        }
    }

    /// The destination recreates changed objects, whose contents are then unspecified.
    fn follow(&mut self, session: &mut Session) {
        let now = created(session);
        for (name, call) in &self.objects {
            if now.get(name) != Some(call) {
                let all = self.bytes.iter_mut().filter(|((of, _), _)| of == name);
                all.for_each(|(_, byte)| *byte = 0xee);
            }
        }
        self.objects = now;
    }

    fn holds(&self, chunk: &super::regions::Chunk, bytes: &[u8]) -> bool {
        let (name, offset) = (chunk.owner(), chunk.offset);
        Self::places(chunk).all(|place| {
            let held = self.bytes.get(&(name, offset + place as u64));
            held.copied().unwrap_or(0) == bytes[place]
        })
    }
}

/// Copies while the program does `meanwhile`.
fn copy_before(
    source: &mut Program,
    precopy: &mut PreCopy,
    copy: &mut Copy,
    meanwhile: &[Vec<Step>],
) {
    let mut meanwhile = meanwhile.iter();
    loop {
        precopy.read(&mut source.session).unwrap();
        let steps = meanwhile.next();
        steps
            .into_iter()
            .flatten()
            .for_each(|step| source.step(step));
        while let Some(batch) = precopy
            .mover
            .finish_read(&mut source.session, true)
            .unwrap()
        {
            for (chunk, bytes) in batch.each() {
                if !precopy.samples.look(chunk, bytes) {
                    let zeros = precopy.copied.note(chunk);
                    copy.take(chunk, bytes, zeros);
                }
            }
        }
        precopy.stop_if_wasteful(&mut source.session).unwrap();
        if precopy.is_idle() && precopy.is_over(&mut source.session).unwrap() {
            break;
        }
    }
}

fn created(session: &Session) -> std::collections::BTreeMap<Name, Recorded> {
    let all = live(session).into_iter().filter(|(_, creates, _)| *creates);
    all.map(|(name, _, call)| (name, call)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_program_state_survives_a_checkpoint(steps in steps()) {
        let _alone = alone();
        let mut first = program(&steps);
        settle(&mut first.session);
        let state = write(&mut first.session);
        let (objects, memory) = (live(&first.session), contents(&mut first.session));
        let expected = values(&first.session, &first.named);
        drop(first.session);
        // Another number of cores: another machine.
        let mut second = session(1, 1 << 30);
        read(&mut second, &state).unwrap();
        settle(&mut second);
        prop_assert_eq!(live(&second), objects);
        prop_assert_eq!(contents(&mut second), memory);
        prop_assert_eq!(values(&second, &first.named), expected);
        // And once more from there.
        let again = write(&mut second);
        drop(second);
        let mut third = session(2, 1 << 30);
        read(&mut third, &again).unwrap();
    }

    #[test]
    fn precopy_and_the_rest_are_complete(
        before in steps(),
        meanwhile in proptest::collection::vec(steps(), 0..4),
        renewals in proptest::collection::vec(steps(), 0..4),
        after in steps(),
        watched in any::<bool>(),
    ) {
        let _alone = alone();
        let mut source = program(&before);
        settle(&mut source.session);
        if watched {
            source.session.gpu.watch_writes(true).unwrap();
        }
        let mut copy = Copy::new(&mut source.session);
        let chunks = source.session.chunks().unwrap();
        let sent = owners(&source.session);
        let mut precopy = PreCopy::new(&mut source.session, sent, chunks, watched).unwrap();
        copy_before(&mut source, &mut precopy, &mut copy, &meanwhile);
        for steps in &renewals {
            // Between the two, the program may free what is sent, and map it again later.
            let sent = owners(&source.session);
            copy.follow(&mut source.session);
            steps.iter().for_each(|step| source.step(step));
            let chunks = source.session.chunks().unwrap();
            precopy.renew(&source.session, sent, chunks);
            copy_before(&mut source, &mut precopy, &mut copy, &[]);
        }
        after.iter().for_each(|step| source.step(step));
        settle(&mut source.session);
        copy.follow(&mut source.session);
        let chunks = source.session.chunks().unwrap();
        let rest = precopy.rest(&mut source.session, &chunks).unwrap();
        let all = [(&rest.send, true), (&rest.compare, true), (&rest.fresh, false)];
        for (chunks, zeros) in all {
            precopy
                .mover
                .read_all(&mut source.session, chunks, |chunk, bytes| {
                    copy.take(chunk, bytes, zeros);
                    Ok(())
                })
                .unwrap();
        }
        precopy
            .mover
            .read_all(&mut source.session, &chunks, |chunk, bytes| {
                assert!(copy.holds(chunk, bytes), "{chunk:?}");
                Ok(())
            })
            .unwrap();
        precopy.mover.release(&mut source.session);
    }

    #[test]
    fn objects_follow_what_changed_meanwhile(before in steps(), after in steps()) {
        let _alone = alone();
        let mut early = program(&before);
        let first = early.session.items().unwrap();
        after.iter().for_each(|step| early.step(step));
        settle(&mut early.session);
        let last = early.session.items().unwrap();
        let wanted: std::collections::BTreeSet<_> =
            live(&early.session).into_iter().map(|(name, creates, _)| (name, creates)).collect();
        drop(early.session);
        let mut other = session(1, 1 << 30);
        store(&mut other, PTX);
        other.replace_objects(&first).unwrap();
        settle(&mut other);
        other.replace_objects(&last).unwrap();
        let got: std::collections::BTreeSet<_> =
            live(&other).into_iter().map(|(name, creates, _)| (name, creates)).collect();
        prop_assert_eq!(got, wanted);
    }
}

#[test]
fn a_damaged_state_is_refused_with_a_reason() {
    let _alone = alone();
    let mut first = program(&[Step::Create(0, 0), Step::Create(6, 1), Step::Fill(0, 5)]);
    let good = write(&mut first.session);
    drop(first);
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let mut session = session(1, 1 << 30);
        let error = read(&mut session, &bad).unwrap_err();
        assert!(!error.to_string().is_empty());
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn a_gpu_without_enough_memory_refuses() {
    let _alone = alone();
    let mut first = program(&[]);
    let map = Recorded::of(&MemMap {
        address: DeviceAddress(first.session.gpu.regions().arena),
        size: 300 << 20,
    });
    first.session.perform(&map).unwrap();
    let state = write(&mut first.session);
    assert!(state.len() < 1 << 20, "zeros are not written");
    drop(first);
    let mut small = session(1, 128 << 20);
    let error = read(&mut small, &state).unwrap_err();
    assert!(error.to_string().contains("MemMap"), "{error}");
    drop(small);
    // Others use most of it.
    let mut full = session(1, 512 << 20);
    let others = full.gpu.regions().arena + (1 << 30);
    full.gpu.memory_map(others, 256 << 20).unwrap();
    let error = read(&mut full, &state).unwrap_err().to_string();
    let rest = format!(" of the {} bytes of its memory are free", 512 << 20);
    assert!(
        error.contains("MemMap") && error.ends_with(&rest),
        "{error}"
    );
}

#[test]
fn times_between_events_are_preserved() {
    let _alone = alone();
    let mut first = program(&[]);
    for event in [200, 201, 202] {
        let create = Recorded::of(&EventCreate {
            event: EventHandle(event),
            flags: 0,
        });
        first.session.perform(&create).unwrap();
    }
    for event in [200, 201] {
        let record = Recorded::of(&EventRecord {
            event: EventHandle(event),
            stream: StreamHandle(0),
        });
        first.session.perform(&record).unwrap();
        settle(&mut first.session);
    }
    let elapsed = |session: &mut Session, start: u64, end: u64| {
        let events = &session.objects.events;
        let call = crate::tests::elapsed(EventHandle(start), EventHandle(end));
        events.event_elapsed_time(&mut session.gpu, &call)
    };
    let before = elapsed(&mut first.session, 200, 201).unwrap();
    let state = write(&mut first.session);
    drop(first);
    let mut second = session(1, 1 << 30);
    read(&mut second, &state).unwrap();
    let after = elapsed(&mut second, 200, 201).unwrap();
    assert!((before - after).abs() < 0.01, "{before} {after}");
    assert!(elapsed(&mut second, 200, 202).is_err(), "never recorded");
    let record = Recorded::of(&EventRecord {
        event: EventHandle(202),
        stream: StreamHandle(0),
    });
    second.perform(&record).unwrap();
    settle(&mut second);
    assert!(elapsed(&mut second, 201, 202).unwrap() > 0.0);
}

#[test]
fn linear_textures_and_attributes_are_restored() {
    let _alone = alone();
    let mut first = program(&[Step::Create(0, 0), Step::Create(6, 0), Step::Create(7, 0)]);
    let texture = Recorded::of(&TextureCreate {
        texture: TextureHandle(900),
        spec: TextureSpec {
            resource: TextureResource::Linear(LinearResource {
                address: first.session.gpu.regions().arena,
                format: 0x20,
                channels: 1,
                width: 4096,
                height: 0,
                pitch: 0,
            }),
            sampling: sampling(),
            view: no_view(),
        },
    });
    first.session.perform(&texture).unwrap();
    let function = FunctionHandle(first.named[&(7, 0)]);
    let set = Recorded::of(&FuncSetAttribute {
        function,
        attribute: 8,
        value: 4096,
    });
    first.session.perform(&set).unwrap();
    let objects = live(&first.session);
    let state = write(&mut first.session);
    drop(first);
    let mut second = session(1, 1 << 30);
    read(&mut second, &state).unwrap();
    assert_eq!(live(&second), objects);
}

/// Pre-copies a session on a device without dirty tracking, while a program rewrites the
/// first `percent` of its memory after every batch. Returns the fraction of all memory
/// that was copied.
fn copied_ahead(percent: u64) -> f64 {
    const SIZE: u64 = 64 * CHUNK;
    let mut session = session(2, 1 << 30);
    let address = DeviceAddress(session.gpu.regions().arena);
    let map = MemMap {
        address,
        size: SIZE,
    };
    session.perform(&Recorded::of(&map)).unwrap();
    let mut value = 0;
    let mut rewrite = |session: &mut Session| {
        value += 1;
        // All chunks are alike, except for the part that is not written.
        let set = Memset {
            destination: address.0,
            pitch: CHUNK,
            value,
            element: 4,
            width: CHUNK / 4,
            height: SIZE / CHUNK * percent / 100,
            stream: StreamHandle(0),
        };
        session.perform(&Recorded::of(&set)).unwrap();
        settle(session);
    };
    rewrite(&mut session);
    let (sent, chunks) = (owners(&session), session.chunks().unwrap());
    let mut precopy = PreCopy::new(&mut session, sent, chunks, false).unwrap();
    loop {
        precopy.read(&mut session).unwrap();
        if let Some(batch) = precopy.mover.finish_read(&mut session, true).unwrap() {
            for (chunk, bytes) in batch.each() {
                if !precopy.samples.look(chunk, bytes) {
                    precopy.copied.note(chunk);
                }
            }
            rewrite(&mut session);
        }
        precopy.stop_if_wasteful(&mut session).unwrap();
        if precopy.is_idle() && precopy.is_over(&mut session).unwrap() {
            break;
        }
    }
    let copied = precopy.copied.bytes as f64 / precopy.all as f64;
    precopy.mover.release(&mut session);
    copied
}

#[test]
fn samples_detect_a_program_that_rewrites_everything() {
    let _alone = alone();
    assert!(copied_ahead(100) < 0.3);
    for percent in [0, 1, 50] {
        let copied = copied_ahead(percent);
        assert!(copied == 1.0, "{copied} at {percent} %");
    }
}
