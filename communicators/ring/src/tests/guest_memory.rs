//! Page lists and the table of a VM's memory, as a guest's kernel and a
//! hypervisor may write them, or as a hostile one would.

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::pwrite;

use crate::guest_memory::{CHECKED, ListError, Range};
use crate::layout::list;
use crate::testing::{BASE, PAGE, PAGES, Vm, page};

#[test]
fn bytes_are_found_across_scattered_pages() {
    let (vm, mut memory) = Vm::new();
    // Pages 3; 7 and 8; 1: from the last bytes of 3 to the first of 1.
    vm.name(
        2,
        &[page(3), page(7) | 1, page(1)],
        4090,
        2 * PAGE + 10,
        list::WRITABLE,
    );
    let named = memory.take(2).unwrap();
    assert_eq!((named.length(), vm.state(2)), (2 * PAGE + 10, list::BUSY));
    assert_eq!(memory.take(2).unwrap_err(), ListError::NotReady(2));

    let mut bytes = vec![0; 2 * PAGE as usize + 10];
    memory.read(&named, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..7], [3, 3, 3, 3, 3, 3, 7]);
    assert_eq!(bytes[6 + PAGE as usize], 8);
    assert_eq!(&bytes[6 + 2 * PAGE as usize - 1..], [8, 1, 1, 1, 1]);
    let mut some = [0; 3];
    memory.read(&named, 5, &mut some).unwrap();
    assert_eq!(some, [3, 7, 7]);

    memory.write(&named, 4, &[0xaa; 4]).unwrap();
    assert_eq!(
        [vm.byte(3 * PAGE + 4093), vm.byte(3 * PAGE + 4094)],
        [3, 0xaa]
    );
    assert_eq!([vm.byte(7 * PAGE + 1), vm.byte(7 * PAGE + 2)], [0xaa, 7]);
    drop(named);
    assert_eq!(vm.state(2), list::READY);
}

#[test]
fn nothing_but_the_vms_memory_is_reached() {
    let (mut vm, mut memory) = Vm::new();
    let mut bytes = [0; 2];
    let bad = [
        page(PAGES),
        page(PAGES - 1) | 1,
        BASE - PAGE,
        0,
        !0xfff,
        !0,
        0xfff,
    ];
    for (entry, at) in bad.into_iter().zip([0, PAGE, 0, 0, 0, 0, 0]) {
        vm.name(0, &[entry], 0, at + 2, list::WRITABLE);
        let named = memory.take(0).unwrap();
        let read = memory.read(&named, at, &mut bytes);
        assert!(matches!(read, Err(ListError::NotMapped(_))), "{entry:#x}");
        let written = memory.write(&named, at, &bytes);
        assert!(
            matches!(written, Err(ListError::NotMapped(_))),
            "{entry:#x}"
        );
    }
    // A table whose file does not exist, or is too short.
    let ranges = [
        Range {
            file: 1,
            ..vm.all(1)
        },
        Range {
            file: u32::MAX,
            ..vm.all(1)
        },
        Range {
            offset: PAGES * PAGE,
            ..vm.all(1)
        },
        Range {
            offset: u64::MAX,
            ..vm.all(1)
        },
    ];
    for range in ranges {
        vm.map(&[range]);
        vm.name(0, &[page(0)], 0, 2, 0);
        let named = memory.take(0).unwrap();
        let read = memory.read(&named, 0, &mut bytes);
        assert_eq!(read, Err(ListError::NotMapped(page(0))), "{range:?}");
    }
}

#[test]
fn memory_unmapped_while_in_use_is_used_no_more() {
    let (mut vm, mut memory) = Vm::new();
    vm.name(1, &[page(2)], 0, PAGE, list::WRITABLE);
    let named = memory.take(1).unwrap();
    let mut bytes = [0; 8];
    memory.read(&named, 0, &mut bytes).unwrap();
    vm.map(&[]);
    let gone = Err(ListError::NotMapped(page(2)));
    assert_eq!(memory.read(&named, 0, &mut bytes), gone);
    assert_eq!(memory.write(&named, 0, &[9; 8]), gone);
    assert_eq!(vm.byte(2 * PAGE), 2);
    // A table that is being written does not count.
    let odd = (vm.sequence | 1).to_le_bytes();
    pwrite(&vm.table, &odd, 0).unwrap();
    assert_eq!(memory.read(&named, 0, &mut bytes), gone);
    vm.map(&[vm.all(1)]);
    memory.read(&named, 0, &mut bytes).unwrap();
}

#[test]
fn what_is_not_to_be_written_is_not() {
    let (mut vm, mut memory) = Vm::new();
    let refused = Err(ListError::ReadOnly(page(5)));
    vm.name(0, &[page(5)], 0, PAGE, 0);
    let named = memory.take(0).unwrap();
    assert_eq!(memory.write(&named, 0, &[1]), refused, "by the list");
    drop(named);
    vm.map(&[vm.all(0)]);
    vm.name(0, &[page(5)], 0, PAGE, list::WRITABLE);
    let named = memory.take(0).unwrap();
    assert_eq!(memory.write(&named, 0, &[1]), refused, "by the hypervisor");
    assert_eq!(vm.byte(5 * PAGE), 5);
}

#[test]
fn lists_that_make_no_sense_are_refused_and_given_back() {
    let (vm, memory) = Vm::new();
    assert_eq!(memory.take(0).unwrap_err(), ListError::NotReady(0));
    assert_eq!(
        memory.take(u32::MAX).unwrap_err(),
        ListError::NotReady(u32::MAX)
    );
    for (entries, offset, length) in [
        (&[][..], 0, 1),
        (&[page(0)], 0, PAGE + 1),
        (&[page(0)], 1, PAGE),
        (&[page(0)], u32::MAX, 1),
        (&[page(0)], 1, u64::MAX),
    ] {
        vm.name(3, entries, offset, length, 0);
        assert_eq!(memory.take(3).unwrap_err(), ListError::Malformed(3));
        assert_eq!(vm.state(3), list::READY);
    }
    // More bytes than a list may name.
    let many = list::PIN_MAX / PAGE;
    vm.name(3, &[page(0) | many], 0, list::PIN_MAX + 1, 0);
    assert_eq!(memory.take(3).unwrap_err(), ListError::Malformed(3));
    // More entries than fit.
    vm.name(3, &[page(0)], 0, 1, 0);
    pwrite(&vm.window, &u32::MAX.to_le_bytes(), 3 * list::SIZE + 4).unwrap();
    drop(memory.take(3).unwrap());
}

/// As with QEMU's `share=off`: the file exists, but the guest's writes do not reach it.
#[test]
fn memory_that_was_not_seen_to_be_shared_is_not_used() {
    let (vm, mut memory) = Vm::unchecked(PAGES);
    let refused = ListError::NotShared(page(3));
    vm.name(0, &[page(3)], 0, PAGE, list::WRITABLE);
    let named = memory.take(0).unwrap();
    assert_eq!(memory.read(&named, 0, &mut [0]), Err(refused));
    assert_eq!(memory.write(&named, 0, &[9]), Err(refused));
    let value = u64::from_le_bytes([3; 8]);
    assert_eq!(memory.check(&named, value + 1), Err(refused));
    assert_eq!(memory.read(&named, 0, &mut [0]), Err(refused));
    assert_eq!(vm.bytes(3 * PAGE, 16), [3; 16], "nothing was written");
    memory.check(&named, value).unwrap();
    assert_eq!(vm.bytes(3 * PAGE + 8, 8), (!value).to_le_bytes());
    memory.read(&named, 0, &mut [0]).unwrap();
    // A later check that fails revokes the trust.
    assert_eq!(memory.check(&named, value + 1), Err(refused));
    assert_eq!(memory.read(&named, 0, &mut [0]), Err(refused));

    let across = ListError::Malformed(1);
    vm.name(1, &[page(3), page(7)], 4088, CHECKED, list::WRITABLE);
    assert_eq!(memory.check(&memory.take(1).unwrap(), value), Err(across));
    vm.name(1, &[page(3)], 0, CHECKED, 0);
    let read_only = ListError::ReadOnly(page(3));
    assert_eq!(
        memory.check(&memory.take(1).unwrap(), value),
        Err(read_only)
    );
    vm.name(1, &[page(3)], 0, CHECKED - 1, list::WRITABLE);
    let short = ListError::Short;
    assert_eq!(memory.check(&memory.take(1).unwrap(), value), Err(short));
}

#[test]
fn a_channel_is_kept_while_its_lists_are_used() {
    let (vm, memory) = Vm::new();
    let is_kept = || {
        let mut fds = [PollFd::new(&vm.tenure, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 0
    };
    vm.name(0, &[page(0)], 0, 1, 0);
    let named = memory.take(0).unwrap();
    drop(memory);
    assert!(is_kept(), "a list is in use");
    drop(named);
    assert!(!is_kept());
}

#[test]
fn a_list_is_read_once() {
    let (vm, mut memory) = Vm::new();
    vm.name(0, &[page(4), page(5)], 0, 2 * PAGE, 0);
    let named = memory.take(0).unwrap();
    // A kernel that changes a list while the host uses it has no effect.
    vm.name(0, &[page(9), page(PAGES)], 100, u64::MAX, list::WRITABLE);
    let mut bytes = vec![0; 2 * PAGE as usize];
    memory.read(&named, 0, &mut bytes).unwrap();
    assert_eq!([bytes[0], bytes[PAGE as usize]], [4, 5]);
    let refused = Err(ListError::ReadOnly(page(4)));
    assert_eq!(memory.write(&named, 0, &[1]), refused);
}

#[test]
fn lists_of_another_channel_are_out_of_reach() {
    let (vm, memory) = Vm::new();
    let next = u64::from(list::COUNT);
    vm.name(next, &[page(0)], 0, PAGE, list::WRITABLE);
    let refused = ListError::NotReady(list::COUNT);
    assert_eq!(memory.take(list::COUNT).unwrap_err(), refused);
    assert_eq!(vm.state(next), list::READY);
}

proptest! {
    /// Whatever a list contains, only pages of the VM are read, and those that it names.
    #[test]
    fn any_list_reads_what_it_names_or_nothing(
        entries in prop::collection::vec(
            prop_oneof![
                (0..PAGES + 2, 0_u64..3).prop_map(|(number, more)| page(number) | more),
                any::<u64>(),
            ],
            0..6,
        ),
        offset in 0_u32..5000,
        length in 0_u64..40_000,
        at in 0_u64..40_000,
        size in 0_usize..20_000,
    ) {
        let (vm, mut memory) = Vm::new();
        vm.name(0, &entries, offset, length, 0);
        let Ok(named) = memory.take(0) else { return Ok(()) };
        let mut bytes = vec![0xff; size];
        if memory.read(&named, at, &mut bytes).is_ok() {
            prop_assert!(at + size as u64 <= length);
            let pages: Vec<u64> = entries
                .iter()
                .flat_map(|entry| (0..=(entry & 0xfff)).map(move |more| (entry & !0xfff) + more * PAGE))
                .take(64)
                .collect();
            for (index, byte) in bytes.iter().enumerate() {
                let place = u64::from(offset) + at + index as u64;
                let number = (pages[(place / PAGE) as usize] - BASE) / PAGE;
                prop_assert_eq!(u64::from(*byte), number);
            }
        }
    }
}
