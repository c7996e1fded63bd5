//! Tracking of writes.

use paragpu_protocol::layout::{CHUNK, Regions};

use super::{PAGE, settle};
use crate::{Device, Platform, StreamId};

/// All kinds of stores; each thread writes to its own page.
pub(super) const STORES: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b32 variable[4096];
.visible .entry stores(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 8192;
    add.s64 %d3, %d1, %d2;
    mov.u32 %r2, 7;
    st.global.v4.u32 [%d3], {%r2, %r2, %r2, %r2};
    red.global.add.u32 [%d3+1048576], %r2;
    atom.global.exch.b32 %r3, [%d3+2097152], %r2;
    st.global.u8 [%d3+3145731], %r2;
    // A whole warp, to adjacent words.
    mul.wide.u32 %d4, %r1, 4;
    add.s64 %d5, %d1, %d4;
    st.global.u32 [%d5+4194304], %r2;
    mov.u64 %d6, variable;
    add.s64 %d6, %d6, %d4;
    st.global.u32 [%d6+8192], %r2;
    ret;
}
";

/// Dirty tracking: all writes are recorded, whatever performs them. Does nothing if the
/// device does not track writes.
///
/// # Panics
/// Where the device does not conform.
pub fn writes(platform: &dyn Platform) {
    let regions = Regions::of(0).expect("device 0 has regions");
    let mut device = platform.open(0, regions).expect("device 0 opens");
    let device = device.as_mut();
    let a = regions.arena;
    device.memory_map(a, 8 * CHUNK).expect("map");
    let (module, _) = device.module_load(&STORES.into(), &[]).expect("module");
    let kernel = device.module_function(module, "stores").expect("kernel").id;
    let (variable, bytes) = device.module_global(module, "variable").expect("variable");
    if device.watch_writes(true).is_err() {
        return;
    }
    let pages: Vec<(u64, u64)> = (a..a + 4 * CHUNK)
        .step_by(PAGE as usize)
        .map(|page| (page, PAGE))
        .chain([(variable, 4096), (variable + 8192, bytes - 8192)])
        .collect();
    // Hashes go to memory that is not tracked here, and are read from there.
    let hashes = |device: &mut dyn Device| {
        let mut host = vec![0_u8; pages.len() * 32 + 2 * PAGE as usize];
        let at = (host.as_mut_ptr() as u64).next_multiple_of(PAGE);
        let size = (pages.len() as u64 * 32).next_multiple_of(PAGE);
        device.host_register(at, size).expect("register");
        device.hash(&pages, at, StreamId::LEGACY).expect("hash");
        settle(device, StreamId::LEGACY).expect("settle");
        device.host_unregister(at).expect("unregister");
        let skip = (at - host.as_ptr() as u64) as usize;
        host[skip..skip + pages.len() * 32].to_vec()
    };
    let noted = |device: &mut dyn Device, forget: bool| {
        let named = |&(page, size): &(u64, u64)| {
            let mut written = Vec::new();
            let noted = device.writes(page, size, forget, &mut written);
            noted.expect("writes are watched");
            !written.is_empty()
        };
        pages.iter().map(named).collect::<Vec<_>>()
    };
    let before = hashes(device);
    assert!(noted(device, true).iter().all(|noted| !noted));
    let fill = |device: &mut dyn Device, at, value, element| {
        let filled = device.memset(at, 0, value, element, 3, 1, StreamId::LEGACY);
        filled.expect("memset");
    };
    fill(device, a + 17 * PAGE - 2, 0x55, 1);
    fill(device, a + 30 * PAGE, 0x1234, 2);
    fill(device, a + 40 * PAGE, 0x1234_5678, 4);
    device
        .copy(a + 50 * PAGE, a + 40 * PAGE, 2 * PAGE, StreamId::LEGACY)
        .expect("copy");
    let end = |address| crate::CopyEnd::Linear {
        address,
        pitch: 8 * PAGE,
        rows: 3,
    };
    device
        .copy_rect(
            end(a + 64 * PAGE),
            end(a + 40 * PAGE),
            [8, 3, 1],
            StreamId::LEGACY,
        )
        .expect("rectangle");
    device
        .launch(
            crate::Launch {
                function: kernel,
                grid: [1; 3],
                block: [64, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
                programmatic: false,
                cluster: [0; 3],
                preferences: Vec::new(),
                parameters: a.to_le_bytes().to_vec().into(),
            },
            StreamId::LEGACY,
        )
        .expect("launch");
    settle(device, StreamId::LEGACY).expect("settle");
    let after = hashes(device);
    let written = noted(device, true);
    let mut changed = 0;
    for (at, (before, after)) in before.chunks(32).zip(after.chunks(32)).enumerate() {
        if before != after {
            changed += 1;
            assert!(written[at], "page {at} changed, but was not tracked");
        }
    }
    assert!(changed > 4 * 64, "{changed} pages changed");
    assert!(!written[100 * 2 + 1], "a page that nobody wrote");
    let forgotten = noted(device, false);
    let left = forgotten.iter().filter(|noted| **noted).count();
    assert!(left <= 2, "pages are forgotten, but for those of others");
    // A new mapping holds zeros.
    device.memory_unmap(a).expect("unmap");
    settle(device, StreamId::LEGACY).expect("settle");
    device.memory_map(a, 8 * CHUNK).expect("map");
    assert!(noted(device, false)[..100].iter().all(|noted| *noted));
    device.watch_writes(false).expect("end of the watch");
}
