//! Objects: created, used, destroyed; invalid handles.

use paragpu_device::PTX_COMPILED;
use paragpu_protocol::codec::{Bytes, Field as _, Text, encode_all};
use paragpu_protocol::handle::{
    ArrayHandle, DeviceAddress, EventHandle, FunctionHandle, ModuleHandle, StreamHandle,
    SurfaceHandle, TextureHandle,
};
use paragpu_protocol::layout::{ARENA_BASE, CHUNK, DEVICE_STRIDE};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;
use paragpu_protocol::types::{
    ArrayShape, DeviceSnapshot, FunctionInfo, FunctionNames, GlobalInfo, LevelsLayers,
    LinearResource, LinkInput, LinkedImage, ResourceView, Sampling, TextureResource, TextureSpec,
    encode_pairs, pairs,
};

use super::{MODULE, elapsed, image_of, kernel, launch, load_image, load_module};
use crate::testing::device::{TELLING, TOLD};
use crate::testing::guest::{Guest, decode, sevens};

const STREAM: StreamHandle = StreamHandle(16);
const EVENT: EventHandle = EventHandle(17);
const NONE: u64 = 404;

fn stream(guest: &Guest) {
    guest.post(&StreamCreate {
        stream: STREAM,
        flags: 1,
        priority: 0,
    });
}

#[test]
fn ping_and_snapshot() {
    let mut guest = Guest::new();
    let pong = guest.call(&Ping { value: 99 }).unwrap();
    assert_eq!(decode::<u64>(&pong), 99);
    let ordinal = ((guest.regions.arena - ARENA_BASE) / DEVICE_STRIDE) as u32;
    let reply = guest.call(&SnapshotDevice { ordinal }).unwrap();
    let snapshot: DeviceSnapshot = decode(&reply);
    assert_eq!(snapshot.name, Text("test device"));
    let attributes: Vec<_> = pairs(snapshot.attributes).collect();
    assert_eq!(attributes, [(1, 1024), (2, u32::MAX)]);
    let ordinal = ordinal + 1;
    guest.fails(&SnapshotDevice { ordinal }, Status::INVALID_DEVICE);
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn streams() {
    let mut guest = Guest::new();
    stream(&guest);
    for stream in [STREAM, StreamHandle::LEGACY] {
        guest.call(&StreamSynchronize { stream }).unwrap();
        guest.call(&StreamQuery { stream }).unwrap();
    }
    for stream in [StreamHandle(NONE), StreamHandle(1)] {
        guest.fails(&StreamSynchronize { stream }, Status::INVALID_HANDLE);
        guest.fails(&StreamQuery { stream }, Status::INVALID_HANDLE);
        guest.fails(&StreamDestroy { stream }, Status::INVALID_HANDLE);
        let event = EVENT;
        guest.fails(&StreamWaitEvent { stream, event }, Status::INVALID_HANDLE);
    }
    let stream = StreamHandle::LEGACY;
    guest.fails(&StreamDestroy { stream }, Status::INVALID_HANDLE);
    for (stream, why) in [(STREAM, "twice"), (StreamHandle(3), "reserved")] {
        let create = StreamCreate {
            stream,
            flags: 0,
            priority: 0,
        };
        let refused = guest.call(&create).unwrap_err();
        assert_eq!(refused.0, Status::INVALID_HANDLE, "{why}");
    }
    let attribute = |stream| StreamSetAttribute {
        stream,
        attribute: 1,
        value: [7; 64],
    };
    guest.call(&attribute(STREAM)).unwrap();
    // No result depends on whether the GPU accepts it.
    let refuses = ("stream_set_attribute", Status::INVALID_VALUE);
    guest.device.state().fail.extend([refuses]);
    guest.call(&attribute(STREAM)).unwrap();
    assert_eq!(guest.device.count("stream_set_attribute"), 2);
    guest.fails(&attribute(StreamHandle(NONE)), Status::INVALID_HANDLE);
    guest.call(&StreamDestroy { stream: STREAM }).unwrap();
    guest.fails(&StreamDestroy { stream: STREAM }, Status::INVALID_HANDLE);
    assert_eq!(guest.device.count("stream_destroy"), 1);
    guest.goodbye();
}

#[test]
fn events() {
    let mut guest = Guest::new();
    stream(&guest);
    let end = EventHandle(18);
    for event in [EVENT, end] {
        guest.call(&EventCreate { event, flags: 0 }).unwrap();
        let stream = STREAM;
        guest.call(&EventRecord { event, stream }).unwrap();
        guest.call(&StreamWaitEvent { stream, event }).unwrap();
        guest.call(&EventSynchronize { event }).unwrap();
        guest.call(&EventQuery { event }).unwrap();
    }
    let time = guest.call(&elapsed(EVENT, end)).unwrap();
    assert_eq!(decode::<f32>(&time), 1.5);
    let twice = EventCreate {
        event: end,
        flags: 0,
    };
    guest.fails(&twice, Status::INVALID_HANDLE);
    // A stream's handle is not an event's.
    for event in [EventHandle(NONE), EventHandle(STREAM.0)] {
        let stream = STREAM;
        guest.fails(&EventRecord { event, stream }, Status::INVALID_HANDLE);
        guest.fails(&EventSynchronize { event }, Status::INVALID_HANDLE);
        guest.fails(&EventQuery { event }, Status::INVALID_HANDLE);
        guest.fails(&StreamWaitEvent { stream, event }, Status::INVALID_HANDLE);
        guest.fails(&elapsed(event, end), Status::INVALID_HANDLE);
        guest.fails(&elapsed(end, event), Status::INVALID_HANDLE);
        guest.fails(&EventDestroy { event }, Status::INVALID_HANDLE);
    }
    let event = EVENT;
    let stream = StreamHandle(NONE);
    guest.fails(&EventRecord { event, stream }, Status::INVALID_HANDLE);
    guest.call(&EventDestroy { event }).unwrap();
    guest.fails(&EventDestroy { event }, Status::INVALID_HANDLE);
    guest.goodbye();
}

#[test]
fn modules_and_kernels() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let function = kernel(&mut guest, 20, "noop");
    let again = FunctionGet {
        function: FunctionHandle(21),
        module: MODULE,
        name: Text("store"),
    };
    let reply = guest.call(&again).unwrap();
    let info: FunctionInfo = decode(&reply);
    let parameters: Vec<_> = pairs(info.parameters).collect();
    assert_eq!(parameters, [(0, 8), (8, 4)]);
    guest.fails(&again, Status::INVALID_HANDLE);

    let attribute = |function| FuncSetAttribute {
        function,
        attribute: 8,
        value: 1,
    };
    let config = |function| FuncSetCacheConfig {
        function,
        config: 1,
    };
    let blocks = |function| OccupancyMaxActiveBlocksPerMultiprocessorWithFlags {
        function,
        block_size: 256,
        dynamic_shared: 0,
        flags: 0,
    };
    let shared = |function| OccupancyAvailableDynamicSMemPerBlock {
        function,
        blocks: 1,
        block_size: 256,
    };
    let stream = StreamHandle::LEGACY;
    guest.call(&attribute(function)).unwrap();
    guest.call(&config(function)).unwrap();
    assert_eq!(decode::<i32>(&guest.call(&blocks(function)).unwrap()), 8);
    assert_eq!(decode::<u64>(&guest.call(&shared(function)).unwrap()), 4096);
    guest.call(&launch(function, stream, &[])).unwrap();
    let early = Launch {
        flags: Launch::PROGRAMMATIC,
        ..launch(function, stream, &[])
    };
    guest.call(&early).unwrap();
    let counts = ["launch", "programmatic_launch"].map(|name| guest.device.count(name));
    assert_eq!(counts, [1, 1]);
    let preference = |attribute: u32| [&attribute.to_le_bytes()[..], &[7; 64]].concat();
    let (priority, cooperative) = (preference(8), preference(2));
    let twice = [&priority[..], &priority].concat();
    let preferring = |bytes| Launch {
        preferences: Bytes(bytes),
        ..launch(function, stream, &[])
    };
    guest.call(&preferring(&priority)).unwrap();
    assert_eq!(guest.device.count("launch_with_priority_7"), 1);
    for bytes in [&priority[..67], &cooperative, &twice] {
        guest.fails(&preferring(bytes), Status::INVALID_VALUE);
    }
    let check_unknown = |guest: &mut Guest, function| {
        guest.fails(&attribute(function), Status::INVALID_HANDLE);
        guest.fails(&config(function), Status::INVALID_HANDLE);
        guest.fails(&blocks(function), Status::INVALID_HANDLE);
        guest.fails(&shared(function), Status::INVALID_HANDLE);
        guest.fails(&launch(function, stream, &[]), Status::INVALID_HANDLE);
    };
    check_unknown(&mut guest, FunctionHandle(NONE));
    let nowhere = launch(function, StreamHandle(NONE), &[]);
    guest.fails(&nowhere, Status::INVALID_HANDLE);

    let global = |module, name| GlobalGet {
        module,
        name: Text(name),
    };
    let found = guest.call(&global(MODULE, "variable")).unwrap();
    let (address, size) = (0x7000, 64);
    assert_eq!(decode::<GlobalInfo>(&found), GlobalInfo { address, size });
    guest.fails(&global(MODULE, "nothing"), Status::NOT_FOUND);
    let unknown = ModuleHandle(NONE);
    guest.fails(&global(unknown, "variable"), Status::INVALID_HANDLE);
    // A call of the native part that this device does not implement.
    let count = |module| ModuleGetFunctionCount { module };
    guest.fails(&count(MODULE), Status::NOT_SUPPORTED);
    guest.fails(&count(unknown), Status::INVALID_HANDLE);
    let names = |module, first| ModuleFunctions { module, first };
    let all = guest.call(&names(MODULE, 0)).unwrap();
    let all: FunctionNames = decode(&all);
    assert_eq!(
        (all.total, all.names.0),
        (4, &b"noop\0fault\0reject\0store\0"[..])
    );
    let last = guest.call(&names(MODULE, 3)).unwrap();
    assert_eq!(decode::<FunctionNames>(&last).names.0, b"store\0");
    let past = guest.call(&names(MODULE, u32::MAX)).unwrap();
    assert_eq!(decode::<FunctionNames>(&past).names.0, b"");
    guest.fails(&names(unknown, 0), Status::INVALID_HANDLE);
    let get = |module, name| FunctionGet {
        function: FunctionHandle(22),
        module,
        name: Text(name),
    };
    guest.fails(&get(MODULE, "nothing"), Status::NOT_FOUND);
    guest.fails(&get(unknown, "noop"), Status::INVALID_HANDLE);

    let hash = *blake3::hash(b"an image").as_bytes();
    let load = |module, hash, options| ModuleLoad {
        module,
        hash,
        options: Bytes(options),
    };
    guest.fails(&load(MODULE, hash, &[]), Status::INVALID_HANDLE);
    guest.fails(&load(ModuleHandle(23), [0; 32], &[]), Status::NOT_FOUND);
    guest.fails(&load(ModuleHandle(23), hash, &[1]), Status::INVALID_VALUE);
    let log = guest.call(&load(ModuleHandle(23), hash, &[0; 16])).unwrap();
    assert_eq!(decode::<Text>(&log), Text("8 bytes, 2 options"));
    let query = |hash, size| ImageQuery { hash, size };
    assert!(decode::<bool>(&guest.call(&query(hash, 8)).unwrap()));
    assert!(!decode::<bool>(&guest.call(&query([1; 32], 8)).unwrap()));

    guest.call(&ModuleUnload { module: MODULE }).unwrap();
    guest.fails(&ModuleUnload { module: MODULE }, Status::INVALID_HANDLE);
    // Its kernels are destroyed with it.
    check_unknown(&mut guest, function);
    guest.goodbye();
}

#[test]
fn a_module_is_charged_for_what_the_device_tells() {
    let mut guest = Guest::new();
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let mut held = |text: &str| {
        let hash = image_of(&guest, text.as_bytes());
        guest.call(&ContextSynchronize {}).unwrap();
        let before = guest.counters().host_memory;
        load_image(&mut guest, hash);
        let held = guest.counters().host_memory - before;
        guest.call(&ModuleUnload { module: MODULE }).unwrap();
        assert_eq!(guest.counters().host_memory, before);
        held
    };
    // Of the same length.
    let silent = held(&format!("{text}{}", " ".repeat(TELLING.len())));
    let telling = held(&format!("{text}{TELLING}"));
    let length = (text.len() + TELLING.len()) as u64;
    assert_eq!(silent - telling, PTX_COMPILED * length - TOLD);
    guest.goodbye();
}

#[test]
fn a_module_is_charged_while_work_in_flight_may_use_it() {
    let mut guest = Guest::new();
    // The device's first stream.
    let (id, size) = (1, 5000);
    stream(&guest);
    let address = guest.regions.arena;
    let map = MemMap {
        address: DeviceAddress(address),
        size: CHUNK,
    };
    guest.call(&map).unwrap();
    let hash = image_of(&guest, &vec![7; size]);
    guest.call(&ContextSynchronize {}).unwrap();
    let before = guest.counters().host_memory;
    load_image(&mut guest, hash);
    let loaded = guest.counters().host_memory;
    assert!(loaded >= before + size as u64);
    guest.device.hold(id, true);
    guest.post(&sevens(address, STREAM));
    guest.call(&ModuleUnload { module: MODULE }).unwrap();
    assert!(guest.counters().host_memory >= loaded);
    guest.device.hold(id, false);
    guest.call(&StreamSynchronize { stream: STREAM }).unwrap();
    // It makes room for the next one.
    let unknown = ModuleLoad {
        module: MODULE,
        hash: [0; 32],
        options: Bytes(&[]),
    };
    guest.fails(&unknown, Status::NOT_FOUND);
    assert_eq!(guest.counters().host_memory, before);
    // With an idle device, it goes at once.
    load_image(&mut guest, hash);
    guest.call(&ModuleUnload { module: MODULE }).unwrap();
    assert_eq!(guest.counters().host_memory, before);
    guest.goodbye();
}

#[test]
fn links() {
    let mut guest = Guest::new();
    // Its image is stored from then on.
    load_module(&mut guest);
    let hash = *blake3::hash(b"an image").as_bytes();
    let list = |hash| {
        let mut list = Vec::new();
        for name in ["one", "two"] {
            let input = LinkInput {
                kind: 1,
                name: Text(name),
                options: Bytes(&[0; 8]),
                hash,
            };
            let rest = input.encode(&mut list).to_vec();
            list.extend(rest);
        }
        list
    };
    let inputs = list(hash);
    let link = |inputs| ImageLink {
        options: Bytes(&[0; 16]),
        inputs: Bytes(inputs),
    };
    let reply = guest.call(&link(&inputs)).unwrap();
    let linked: LinkedImage = decode(&reply);
    assert_eq!(
        (linked.size, linked.log),
        (16, Text("one two with 2 options"))
    );
    let read = |hash, offset| ImageRead { hash, offset };
    let hash = linked.hash;
    let image = guest.call(&read(hash, 0)).unwrap();
    assert_eq!(decode::<Bytes>(&image).0, b"an imagean image");
    let end = guest.call(&read(hash, 10)).unwrap();
    assert_eq!(decode::<Bytes>(&end).0, b" image");
    let past = guest.call(&read(hash, u64::MAX)).unwrap();
    assert_eq!(decode::<Bytes>(&past).0, b"");
    guest.fails(&read([3; 32], 0), Status::NOT_FOUND);
    let unknown = list([3; 32]);
    guest.fails(&link(&unknown), Status::NOT_FOUND);
    let short = LinkInput {
        kind: 1,
        name: Text(""),
        options: Bytes(&[]),
        hash,
    };
    let many = encode_all(&short).repeat(4097);
    guest.fails(&link(&many), Status::INVALID_VALUE);
    let cut = inputs.get(..inputs.len() - 1).unwrap();
    guest.fails(&link(cut), Status::INVALID_VALUE);
    let linked = ModuleLoad {
        module: ModuleHandle(40),
        hash,
        options: Bytes(&[]),
    };
    guest.call(&linked).unwrap();
    guest.goodbye();
}

#[test]
fn options_that_are_not_numbers_do_not_reach_the_driver() {
    let mut guest = Guest::new();
    load_module(&mut guest);
    let hash = *blake3::hash(b"an image").as_bytes();
    let loads = guest.device.count("module_load");
    // A buffer and its size, the names and addresses of symbols, a value out of range.
    for (name, value) in [
        (5, 0x1000),
        (6, 0x7fff_ffff),
        (17, 8),
        (18, 8),
        (25, 8),
        (7, 5),
    ] {
        let options = encode_pairs([(0, 32), (name, value)]);
        let options = Bytes(&options);
        let load = ModuleLoad {
            module: ModuleHandle(40),
            hash,
            options,
        };
        guest.fails(&load, Status::INVALID_VALUE);
        let input = |options| {
            let input = LinkInput {
                kind: 1,
                name: Text("one"),
                options,
                hash,
            };
            encode_all(&input)
        };
        for (options, inputs) in [
            (options, input(Bytes(&[]))),
            (Bytes(&[]), input(options)),
            (Bytes(&[0; 7]), input(Bytes(&[]))),
        ] {
            let inputs = Bytes(&inputs);
            guest.fails(&ImageLink { options, inputs }, Status::INVALID_VALUE);
        }
    }
    assert_eq!(guest.device.count("module_load"), loads);
    assert_eq!(guest.device.count("image_link"), 0);
    let options = encode_pairs([(0, 32), (7, 4)]);
    let load = ModuleLoad {
        module: ModuleHandle(40),
        hash,
        options: Bytes(&options),
    };
    guest.call(&load).unwrap();
    guest.goodbye();
}

#[test]
fn arrays_and_textures() {
    let mut guest = Guest::new();
    let array = ArrayHandle(30);
    let shape = ArrayShape {
        width: 64,
        height: 64,
        depth: 0,
        format: 0x20,
        channels: 4,
        flags: 0,
        levels: 0,
    };
    let free = guest.memory_info().free;
    guest.call(&ArrayCreate { array, shape }).unwrap();
    assert_eq!(guest.counters().device_memory, 64 * 64 * 16);
    guest.fails(&ArrayCreate { array, shape }, Status::INVALID_HANDLE);
    let huge = ArrayShape {
        width: 1 << 40,
        ..shape
    };
    let create = |handle, shape| ArrayCreate {
        array: ArrayHandle(handle),
        shape,
    };
    guest.fails(&create(31, huge), Status::OUT_OF_MEMORY);
    let width = u64::MAX;
    let over = ArrayShape { width, ..shape };
    guest.fails(&create(31, over), Status::INVALID_VALUE);
    guest
        .device
        .state()
        .fail
        .insert("array_create", Status::INVALID_VALUE);
    guest.fails(&create(31, shape), Status::INVALID_VALUE);
    assert_eq!(guest.counters().device_memory, 64 * 64 * 16);

    let sampling = Sampling {
        filter: 1,
        ..Sampling::NEAREST
    };
    let view = ResourceView {
        format: 0,
        extent: [0; 3],
        levels_layers: LevelsLayers {
            first_level: 0,
            last_level: 0,
            first_layer: 0,
            last_layer: 0,
        },
    };
    let of = |texture, resource| TextureCreate {
        texture: TextureHandle(texture),
        spec: TextureSpec {
            resource,
            sampling,
            view,
        },
    };
    let linear = TextureResource::Linear(LinearResource {
        address: guest.regions.arena,
        format: 0x20,
        channels: 1,
        width: 64,
        height: 0,
        pitch: 0,
    });
    let value = guest.call(&of(40, TextureResource::Array(array))).unwrap();
    assert_ne!(decode::<u64>(&value), 0);
    guest.call(&of(41, linear)).unwrap();
    guest.fails(&of(41, linear), Status::INVALID_HANDLE);
    let unknown = TextureResource::Array(ArrayHandle(NONE));
    guest.fails(&of(42, unknown), Status::INVALID_HANDLE);
    let texture = TextureHandle(40);
    guest.call(&TextureDestroy { texture }).unwrap();
    guest.fails(&TextureDestroy { texture }, Status::INVALID_HANDLE);

    let surface = SurfaceHandle(50);
    let create = |surface, array| SurfaceCreate {
        surface,
        array,
        level: 0,
    };
    guest.call(&create(surface, array)).unwrap();
    guest.fails(&create(surface, array), Status::INVALID_HANDLE);
    let other = create(SurfaceHandle(51), ArrayHandle(NONE));
    guest.fails(&other, Status::INVALID_HANDLE);
    guest.call(&SurfaceDestroy { surface }).unwrap();
    guest.fails(&SurfaceDestroy { surface }, Status::INVALID_HANDLE);

    guest.call(&ArrayDestroy { array }).unwrap();
    guest.fails(&ArrayDestroy { array }, Status::INVALID_HANDLE);
    assert_eq!(guest.memory_info().free, free);
    guest.goodbye();
}

#[test]
fn limits() {
    let mut guest = Guest::new();
    let set = |limit| CtxSetLimit { limit, value: 7 };
    guest.call(&set(0)).unwrap();
    guest.fails(&set(99), Status::NOT_SUPPORTED);
    let limit = guest.call(&CtxGetLimit { limit: 4 }).unwrap();
    assert_eq!(decode::<u64>(&limit), 5);
    guest.call(&ContextSynchronize {}).unwrap();
    guest.goodbye();
}

#[test]
fn a_device_that_fails_a_call_fails_only_that_call() {
    let mut guest = Guest::new();
    stream(&guest);
    guest
        .call(&EventCreate {
            event: EVENT,
            flags: 0,
        })
        .unwrap();
    let broken = Status::UNKNOWN;
    for method in [
        "stream_query",
        "context_query",
        "event_elapsed_time",
        "memory_info",
    ] {
        guest.device.state().fail.insert(method, broken);
    }
    guest.fails(&StreamQuery { stream: STREAM }, broken);
    guest.fails(&ContextSynchronize {}, broken);
    let (start, end) = (EVENT, EVENT);
    guest.fails(&elapsed(start, end), broken);
    guest.fails(&MemGetInfo {}, broken);
    guest.device.state().fail.insert("stream_create", broken);
    let create = StreamCreate {
        stream: StreamHandle(60),
        flags: 0,
        priority: 0,
    };
    guest.fails(&create, broken);
    // A failed creation leaves the handle free for another attempt.
    guest.fails(
        &StreamQuery {
            stream: StreamHandle(60),
        },
        Status::INVALID_HANDLE,
    );
    guest.call(&create).unwrap();
    guest.call(&ContextSynchronize {}).unwrap();
    guest.goodbye();
}
