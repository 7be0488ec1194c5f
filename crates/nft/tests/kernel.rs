//! The encoder against the kernel, in a network namespace of its own.

use nft::{ApplyError, Batch, Chain, CmpOp, Element, Expr, Hook, HookKind, Kind, Reg, Set, Socket, Verdict};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread with an empty network namespace, which ends with it.
fn in_namespace(test: impl FnOnce(&mut Socket) + Send) {
    std::thread::scope(|scope| {
        let run = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests run as root");
            test(&mut Socket::open().expect("a netfilter socket"));
        };
        scope.spawn(run).join().expect("the test panicked, see above");
    });
}

const SERVICE: [Kind; 3] = [Kind::Ipv4Addr, Kind::InetProto, Kind::InetService];

#[test]
fn every_kind_of_object_and_expression_is_understood() {
    in_namespace(|socket| {
        let mut batch = Batch::new("t");
        batch.add_table();
        batch.add_set(&Set::new("values", &SERVICE).to(&[Kind::Ipv4Addr, Kind::InetService]));
        batch.add_set(&Set::new("verdicts", &[Kind::Mark]).to_verdict());
        batch.add_set(&Set::new("members", &[Kind::Ipv4Addr]));
        batch.add_set(&Set::new("ranges", &[Kind::Ipv4Addr, Kind::InetService]).intervals());
        batch.add_set(&Set::new("sticky", &[Kind::Ipv4Addr]).to(&[Kind::Ipv4Addr, Kind::InetService]).dynamic(1024));
        batch.add_chain(&Chain::base("pre", HookKind::Nat, Hook::Prerouting, -100));
        batch.add_chain(&Chain::base("post", HookKind::Nat, Hook::Postrouting, 100));
        batch.add_chain(&Chain::base("filter", HookKind::Filter, Hook::Prerouting, -110));
        batch.add_chain(&Chain::regular("pick"));
        let mut nat = nft::local_destination();
        nat.extend([
            Expr::DestinationAddress(Reg(0)),
            Expr::Protocol(Reg(1)),
            Expr::DestinationPort(Reg(2)),
            Expr::Random { to: Reg(3), modulus: 3 },
            Expr::VerdictMap { map: "verdicts".into(), key: Reg(3) },
        ]);
        batch.add_rule("pre", &nat);
        batch.add_rule(
            "pick",
            &[
                Expr::SourceAddress(Reg(6)),
                Expr::DestinationAddress(Reg(0)),
                Expr::Protocol(Reg(1)),
                Expr::DestinationPort(Reg(2)),
                Expr::Map { map: "values".into(), key: Reg(0), to: Reg(4) },
                Expr::Update { map: "sticky".into(), key: Reg(6), value: Reg(4), timeout_ms: 1000 },
                Expr::Delete { map: "sticky".into(), key: Reg(6), value: Reg(4) },
                Expr::Dnat { address: Reg(4), port: Reg(5) },
            ],
        );
        batch.add_rule("post", &[Expr::Mark(Reg(0)), Expr::SetMark(Reg(0)), Expr::Masquerade]);
        let mut filter = nft::exact(Expr::InputName, CmpOp::Eq, "eth0");
        filter.extend(nft::masked(Expr::SourceAddress, "10.0.0.0/8".parse().unwrap()));
        filter.extend(nft::ct_state());
        filter.extend([
            Expr::DestinationAddress(Reg(0)),
            Expr::DestinationPort(Reg(1)),
            Expr::Member { set: "ranges".into(), key: Reg(0), absent: true },
            Expr::Member { set: "members".into(), key: Reg(0), absent: false },
            Expr::Reject,
        ]);
        batch.add_rule("filter", &filter);
        batch.add_rule("filter", &[Expr::Protocol(Reg(0)), Expr::Reset]);
        batch.add_rule("filter", &[Expr::Immediate(Reg(0), vec![0; 4]), Expr::Verdict(Verdict::Drop)]);
        let value = Element::new(vec![10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]).value(vec![10, 0, 0, 2, 0, 81, 0, 0]);
        batch.add_elements("values", [&value]);
        batch
            .add_elements("verdicts", [&Element::new(1u32.to_ne_bytes().into()).verdict(Verdict::Goto("pick".into()))]);
        let range = Element::new(vec![10, 0, 0, 0, 0, 80, 0, 0]).until(vec![10, 0, 0, 255, 0, 90, 0, 0]);
        batch.add_elements("ranges", [&range]);
        socket.apply(batch).unwrap();
        assert_eq!(socket.elements("t", "values").unwrap(), vec![value.clone()]);
        assert_eq!(socket.elements("t", "nothing").unwrap(), vec![]);

        let mut batch = Batch::new("t");
        batch.delete_elements("values", [&value]);
        socket.apply(batch).unwrap();
        assert_eq!(socket.elements("t", "values").unwrap(), vec![]);
    });
}

#[test]
fn a_refused_transaction_names_the_object_and_changes_nothing() {
    in_namespace(|socket| {
        let mut batch = Batch::new("t");
        batch.add_table();
        batch.add_set(&Set::new("members", &[Kind::Ipv4Addr]));
        socket.apply(batch).unwrap();
        let mut batch = Batch::new("t");
        batch.add_elements("members", [&Element::new(vec![10, 0, 0, 1])]);
        batch.delete_elements("members", [&Element::new(vec![10, 0, 0, 9])]);
        match socket.apply(batch) {
            Err(ApplyError::Refused(refusals)) => {
                assert_eq!(
                    (refusals[0].object.as_str(), refusals[0].errno),
                    ("elements of set members", Errno::ENOENT)
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(socket.elements("t", "members").unwrap(), vec![]);
    });
}

#[test]
fn many_elements_are_one_transaction() {
    in_namespace(|socket| {
        let elements: Vec<_> = (0..200_000u32).map(|n| Element::new(n.to_be_bytes().into())).collect();
        let mut batch = Batch::new("t");
        batch.add_table();
        batch.add_set(&Set::new("members", &[Kind::Ipv4Addr]));
        batch.add_elements("members", &elements);
        socket.apply(batch).unwrap();
        assert_eq!(socket.elements("t", "members").unwrap().len(), 200_000);
    });
}
