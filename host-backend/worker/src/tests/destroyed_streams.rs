//! Streams that the program destroys while they have work.

use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::table::*;

use super::waiting::{STREAMS, guest, set};

#[test]
fn a_destroyed_stream_is_still_waited_for() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.call(&StreamDestroy { stream }).unwrap();
    guest.send(1, &ContextSynchronize {});
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.aside.is_empty());
    assert_eq!(guest.device.count("stream_destroy"), 0);
    guest.device.hold(id, false);
    guest.reply(1).unwrap();
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(guest.device.count("stream_destroy"), 1);
    guest.goodbye();
}

#[test]
fn streams_destroyed_behind_long_work_are_polled_seldom() {
    const COUNT: u64 = 1000;
    let mut guest = guest();
    for id in 3..3 + COUNT {
        let stream = StreamHandle(id + 100);
        let create = StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        };
        guest.call(&create).unwrap();
        guest.device.hold(id, true);
        set(&guest, guest.regions.arena, stream);
        guest.call(&StreamDestroy { stream }).unwrap();
    }
    assert_eq!(guest.device.count("stream_destroy"), 0);
    let polls = guest.device.count("stream_query");
    assert!(polls < 10 * COUNT as usize, "{polls} polls");
    (3..3 + COUNT).for_each(|id| guest.device.hold(id, false));
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(guest.device.count("stream_destroy"), COUNT as usize);
    guest.goodbye();
}

#[test]
fn a_stream_may_be_destroyed_during_a_wait() {
    let mut guest = guest();
    let (stream, id) = STREAMS[0];
    guest.device.hold(id, true);
    set(&guest, guest.regions.arena, stream);
    guest.send(1, &StreamSynchronize { stream });
    guest.send(2, &ContextSynchronize {});
    guest.call(&StreamDestroy { stream }).unwrap();
    // Checks destroyed objects.
    guest.send(3, &ContextSynchronize {});
    guest.call(&Ping { value: 0 }).unwrap();
    assert!(guest.aside.is_empty());
    guest.device.hold(id, false);
    for slot in [1, 2, 3] {
        guest.reply(slot).unwrap();
    }
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(guest.device.count("stream_destroy"), 1);
    guest.goodbye();
}
