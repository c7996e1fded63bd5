//! Compares the Rust mirrors of the device's layout with the header that specifies it, as
//! read by a C compiler.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use paragpu_communicator_ring::layout as ring;
use paragpu_protocol::frame;
use paragpu_qemu_device::layout::{self, state};

/// Prints a line "name value" for each item of the header.
const READER: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <linux/paragpu.h>
#define VALUE(v) printf(#v " %llu\n", (unsigned long long)(v));
#define FIELD(s, f) printf(#s "." #f " %zu\n", offsetof(struct s, f));
#define SIZE(s) printf("sizeof " #s " %zu\n", sizeof(struct s));
int main(void)
{
    VALUE(PARAGPU_WINDOW_MAGIC) VALUE(PARAGPU_CHANNEL_MAGIC) VALUE(PARAGPU_VERSION)
    VALUE(PARAGPU_MAX_CHANNELS) VALUE(PARAGPU_ALIGNMENT)
    VALUE(PARAGPU_PEER_GUEST) VALUE(PARAGPU_PEER_CHANNEL(5)) VALUE(PARAGPU_PEER_CONTROL(32))
    VALUE(PARAGPU_CHANNEL_FREE) VALUE(PARAGPU_CHANNEL_OPEN)
    VALUE(PARAGPU_CHANNEL_HOST_CLOSED) VALUE(PARAGPU_CHANNEL_RELEASED)
    VALUE(PARAGPU_RECORD_PAD) VALUE(PARAGPU_RECORD_ALIGNMENT) VALUE(PARAGPU_MAX_PAYLOAD)
    VALUE(PARAGPU_LISTS) VALUE(PARAGPU_LIST_SIZE) VALUE(PARAGPU_LIST_ENTRIES)
    VALUE(PARAGPU_PIN_MAX) VALUE(PARAGPU_LIST_WRITABLE)
    VALUE(PARAGPU_LIST_FREE) VALUE(PARAGPU_LIST_READY) VALUE(PARAGPU_LIST_BUSY)
    FIELD(paragpu_window_header, list_offset) SIZE(paragpu_page_list)
    FIELD(paragpu_page_list, state) FIELD(paragpu_page_list, count)
    FIELD(paragpu_page_list, offset) FIELD(paragpu_page_list, flags)
    FIELD(paragpu_page_list, length) FIELD(paragpu_page_list, entry)
    VALUE(PARAGPU_IOC_PIN) VALUE(PARAGPU_IOC_UNPIN) SIZE(paragpu_pin_request)
    VALUE(PARAGPU_IOC_INFO) VALUE(PARAGPU_IOC_DOORBELL) VALUE(PARAGPU_IOC_ACK)
    FIELD(paragpu_window_header, host_gone)
    FIELD(paragpu_window_header, magic) FIELD(paragpu_window_header, version)
    FIELD(paragpu_window_header, channel_count) FIELD(paragpu_window_header, generation)
    FIELD(paragpu_window_header, channel_offset) FIELD(paragpu_window_header, channel_size)
    FIELD(paragpu_window_header, window_size) FIELD(paragpu_window_header, pending)
    FIELD(paragpu_window_header, state) SIZE(paragpu_window_header)
    FIELD(paragpu_channel_header, magic) FIELD(paragpu_channel_header, version)
    FIELD(paragpu_channel_header, region_size)
    FIELD(paragpu_channel_header, to_host_offset) FIELD(paragpu_channel_header, to_host_size)
    FIELD(paragpu_channel_header, to_guest_offset) FIELD(paragpu_channel_header, to_guest_size)
    FIELD(paragpu_channel_header, bulk_offset) FIELD(paragpu_channel_header, bulk_size)
    FIELD(paragpu_channel_header, to_host) FIELD(paragpu_channel_header, to_guest)
    FIELD(paragpu_channel_header, bulk_done)
    FIELD(paragpu_channel_header, closed_by_guest) FIELD(paragpu_channel_header, closed_by_host)
    FIELD(paragpu_ring_indices, tail) FIELD(paragpu_ring_indices, head)
    FIELD(paragpu_ring_indices, consumer_waits) FIELD(paragpu_ring_indices, producer_waits)
    SIZE(paragpu_ring_indices) SIZE(paragpu_channel_header)
    FIELD(paragpu_record, length) FIELD(paragpu_record, kind) FIELD(paragpu_record, slot)
    FIELD(paragpu_record, sequence) SIZE(paragpu_record)
    SIZE(paragpu_info) FIELD(paragpu_info, version) FIELD(paragpu_info, channel)
    FIELD(paragpu_info, channel_size) FIELD(paragpu_info, generation)
    return 0;
}
"#;

fn header_says() -> HashMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("reader.c");
    let program = folder.path().join("reader");
    std::fs::write(&source, READER).unwrap();
    // As installed, without uapi/ in its path.
    let include = folder.path().join("linux");
    std::fs::create_dir(&include).unwrap();
    let header =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-module/include/uapi/linux/paragpu.h");
    std::fs::copy(header, include.join("paragpu.h")).unwrap();
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Wpadded", "-Werror", "-I"])
        .arg(folder.path())
        .arg("-o")
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    let output = Command::new(&program).output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn mirrors_agree_with_the_header() {
    let mut header = header_says();
    let mut same = |name: &str, ours: u64| {
        assert_eq!(header.remove(name), Some(ours), "{name}");
    };
    let at = |offset: usize| offset as u64;

    same("PARAGPU_WINDOW_MAGIC", ring::device::MAGIC_VALUE.into());
    same("PARAGPU_CHANNEL_MAGIC", ring::MAGIC_VALUE.into());
    same("PARAGPU_VERSION", ring::VERSION_VALUE.into());
    same("PARAGPU_MAX_CHANNELS", ring::device::MAX_CHANNELS.into());
    same("PARAGPU_ALIGNMENT", ring::PAGE);
    same("PARAGPU_PEER_GUEST", layout::PEER_GUEST.into());
    same("PARAGPU_PEER_CHANNEL(5)", layout::peer_of_channel(5).into());
    same(
        "PARAGPU_PEER_CONTROL(32)",
        layout::peer_of_control(32).into(),
    );
    same("PARAGPU_CHANNEL_FREE", state::FREE.into());
    same("PARAGPU_CHANNEL_OPEN", state::OPEN.into());
    same("PARAGPU_CHANNEL_HOST_CLOSED", state::HOST_CLOSED.into());
    same("PARAGPU_CHANNEL_RELEASED", state::RELEASED.into());
    assert_eq!(state::FREE, ring::device::STATE_CLOSED);
    assert_eq!(state::OPEN, ring::device::STATE_OPEN);
    assert_eq!(state::HOST_CLOSED, ring::device::STATE_CLOSED_BY_HOST);

    let window = [
        ("magic", ring::device::MAGIC),
        ("version", ring::device::VERSION),
        ("channel_count", ring::device::CHANNEL_COUNT),
        ("generation", ring::device::GENERATION),
        ("channel_offset", ring::device::CHANNEL_OFFSET),
        ("channel_size", ring::device::CHANNEL_SIZE),
        ("window_size", ring::device::WINDOW_SIZE),
        ("host_gone", ring::device::HOST_GONE),
        ("list_offset", ring::device::LIST_OFFSET),
        ("pending", ring::device::PENDING),
        ("state", ring::device::STATE),
    ];
    for (field, offset) in window {
        same(&format!("paragpu_window_header.{field}"), at(offset));
    }
    same("sizeof paragpu_window_header", at(layout::HEADER_SIZE));

    let channel = [
        ("magic", ring::MAGIC),
        ("version", ring::VERSION),
        ("region_size", ring::REGION_SIZE),
        ("to_host_offset", ring::TO_HOST_OFFSET),
        ("to_host_size", ring::TO_HOST_SIZE),
        ("to_guest_offset", ring::TO_GUEST_OFFSET),
        ("to_guest_size", ring::TO_GUEST_SIZE),
        ("bulk_offset", ring::BULK_OFFSET),
        ("bulk_size", ring::BULK_SIZE),
        ("to_host", ring::TO_HOST),
        ("to_guest", ring::TO_GUEST),
        ("bulk_done", ring::BULK_DONE),
        ("closed_by_guest", ring::CLOSED_BY_GUEST),
        ("closed_by_host", ring::CLOSED_BY_HOST),
    ];
    for (field, offset) in channel {
        same(&format!("paragpu_channel_header.{field}"), at(offset));
    }
    let indices = [
        ("tail", ring::index::TAIL),
        ("head", ring::index::HEAD),
        ("consumer_waits", ring::index::CONSUMER_WAITS),
        ("producer_waits", ring::index::PRODUCER_WAITS),
    ];
    for (field, offset) in indices {
        same(&format!("paragpu_ring_indices.{field}"), at(offset));
    }
    same(
        "sizeof paragpu_ring_indices",
        at(ring::TO_GUEST - ring::TO_HOST),
    );
    same(
        "sizeof paragpu_channel_header",
        at(ring::CLOSED_BY_HOST + 64),
    );

    same("PARAGPU_RECORD_PAD", ring::PAD_KIND.into());
    same("PARAGPU_RECORD_ALIGNMENT", ring::RECORD_ALIGN);
    same("PARAGPU_MAX_PAYLOAD", at(frame::MAX_PAYLOAD));
    same("sizeof paragpu_record", at(frame::HEADER_LEN));
    let bytes = frame::FrameHeader {
        length: 0x0003_0201,
        kind: 0x0504,
        slot: 0x0706,
        sequence: 0x0f0e_0d0c_0b0a_0908,
    }
    .to_bytes();
    for (field, first) in [("length", 1), ("kind", 4), ("slot", 6), ("sequence", 8)] {
        let place = bytes.iter().position(|byte| *byte == first).unwrap();
        same(&format!("paragpu_record.{field}"), at(place));
    }

    use ring::list;
    same("PARAGPU_LISTS", list::COUNT.into());
    same("PARAGPU_LIST_SIZE", list::SIZE);
    same("PARAGPU_LIST_ENTRIES", at(list::ENTRIES));
    same("PARAGPU_PIN_MAX", list::PIN_MAX);
    same("PARAGPU_LIST_WRITABLE", list::WRITABLE.into());
    same("PARAGPU_LIST_FREE", list::FREE.into());
    same("PARAGPU_LIST_READY", list::READY.into());
    same("PARAGPU_LIST_BUSY", list::BUSY.into());
    let pages = [
        ("state", list::STATE),
        ("count", list::COUNT_OF),
        ("offset", list::OFFSET),
        ("flags", list::FLAGS),
        ("length", list::LENGTH),
        ("entry", list::ENTRY),
    ];
    for (field, offset) in pages {
        same(&format!("paragpu_page_list.{field}"), at(offset));
    }
    same("sizeof paragpu_page_list", list::SIZE);
    // _IOWR('P', 5, 24 bytes) and _IOW('P', 6, 4 bytes).
    same("PARAGPU_IOC_PIN", 0xc018_5005);
    same("PARAGPU_IOC_UNPIN", 0x4004_5006);
    same("sizeof paragpu_pin_request", 24);

    // _IOR('P', 1, 24 bytes) and _IO; the ring crate checks its own copies.
    same("PARAGPU_IOC_INFO", 0x8018_5001);
    same("PARAGPU_IOC_DOORBELL", 0x5002);
    same("PARAGPU_IOC_ACK", 0x5003);
    same("sizeof paragpu_info", 24);
    for (field, offset) in [
        ("version", 0),
        ("channel", 4),
        ("channel_size", 8),
        ("generation", 16),
    ] {
        same(&format!("paragpu_info.{field}"), offset);
    }
    assert!(header.is_empty(), "not compared: {header:?}");
}

#[test]
fn the_window_says_where_its_channels_are() {
    let layout = layout::Layout::new(256 << 20, 32).unwrap();
    let header = layout.header(7);
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    assert_eq!(word(ring::device::CHANNEL_OFFSET), layout.channel_offset);
    assert_eq!(word(ring::device::CHANNEL_SIZE), layout.channel_size);
    assert_eq!(word(ring::device::WINDOW_SIZE), 256 << 20);
    assert_eq!(word(ring::device::CHANNEL_COUNT), 32 | 7 << 32);
}
