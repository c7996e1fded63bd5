//! Events that one thread waits for while another records them. The test is the host.

#[path = "common/plain_host.rs"]
mod plain_host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use paragpu_abi::CU_EVENT_DISABLE_TIMING;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::table::EventQuery;

/// The host answers for one of the records. That says nothing of the other's stream.
#[test]
fn an_event_recorded_again_while_it_is_queried_completes_no_other_work() {
    let (guest, host) = plain_host::connect();
    let sender = Arc::clone(&host.sender);
    let (queries, held) = channel();
    let asked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            plain_host::serve(host, &[], |_, frame| {
                let is_query = frame.header.kind == EventQuery::INFO.number;
                let is_first = is_query && asked.fetch_add(1, Ordering::Relaxed) == 0;
                if is_first {
                    queries.send(frame.header).unwrap();
                }
                is_first
            });
        });
        let session = plain_host::session(guest, true);
        let events = session.events();
        let [one, other] = [0; 2].map(|_| session.streams().create(1, 0).unwrap());
        let [event, earlier] = [0; 2].map(|_| events.create(CU_EVENT_DISABLE_TIMING).unwrap());
        events.record(&earlier, &other).unwrap();
        events.record(&event, &one).unwrap();
        std::thread::scope(|scope| {
            let querying = scope.spawn(|| events.query(&event));
            let query = held.recv().unwrap();
            events.record(&event, &other).unwrap();
            let reply = || plain_host::answer(query.kind, &[]);
            plain_host::respond(sender.as_ref(), query, query.sequence, reply).unwrap();
            assert_eq!(querying.join().unwrap(), Ok(()));
        });
        // The guest does not know that the other stream has reached its first event.
        events.query(&earlier).unwrap();
        session.close();
    });
    assert_eq!(asked.into_inner(), 2);
}
