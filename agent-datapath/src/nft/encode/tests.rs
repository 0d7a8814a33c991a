use super::*;
use crate::nft::value::{Base, ChainKind, Expr, Hook, Meta};

#[test]
fn attributes_are_padded_to_four_bytes_and_count_their_header() {
    let encoded = attributes().text(TABLE_NAME, "ab");
    assert_eq!(encoded.0, [7, 0, 1, 0, b'a', b'b', 0, 0]);
}

#[test]
fn a_rule_loads_masks_and_compares_register_one() {
    let rule = Rule {
        purpose: "test".into(),
        expressions: vec![Expr::Meta(Meta::Mark), Expr::Mask(vec![0, 0, 0, 0x0f])],
    };
    let bytes = expressions(&rule).0;
    // list element, name "meta", data: dreg 1, key mark
    assert_eq!(
        bytes[..36],
        [
            36, 0, 1, 0x80, 9, 0, 1, 0, b'm', b'e', b't', b'a', 0, 0, 0, 0, 20, 0, 2, 0x80, 8, 0,
            1, 0, 0, 0, 0, 1, 8, 0, 2, 0, 0, 0, 0, 3
        ]
    );
}

#[test]
fn a_replacement_is_one_transaction_that_deletes_what_was_there() {
    let batch = replace(&Table {
        family: Family::Ip,
        name: "t",
        sets: Vec::new(),
        chains: Vec::new(),
    });
    let kinds: Vec<u16> = kinds(&batch.bytes);
    let nft = |message: Message| (SUBSYSTEM << 8) | message as u16;
    assert_eq!(
        kinds,
        [
            NFNL_MSG_BATCH_BEGIN,
            nft(Message::NewTable),
            nft(Message::DelTable),
            nft(Message::NewTable),
            NFNL_MSG_BATCH_END
        ]
    );
    assert_eq!(batch.acknowledgements, 3);
}

#[test]
fn another_purpose_or_priority_is_another_generation() {
    let chain = |priority, purpose: &'static str| Chain {
        name: "c".into(),
        base: Some(Base {
            kind: ChainKind::Filter,
            hook: Hook::Input,
            priority,
        }),
        rules: vec![Rule {
            purpose: purpose.into(),
            expressions: vec![Expr::Drop],
        }],
    };
    let table = |chain| Table {
        family: Family::Ip,
        name: "t",
        sets: Vec::new(),
        chains: vec![chain],
    };
    let base = generation(&table(chain(0, "a")));
    assert_eq!(base, generation(&table(chain(0, "a"))));
    assert_ne!(base, generation(&table(chain(1, "a"))));
    assert_ne!(base, generation(&table(chain(0, "b"))));
}

fn kinds(mut bytes: &[u8]) -> Vec<u16> {
    let mut kinds = Vec::new();
    while bytes.len() >= 16 {
        let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
        kinds.push(u16::from_ne_bytes(bytes[4..6].try_into().unwrap()));
        bytes = &bytes[length..];
    }
    kinds
}

#[test]
fn a_comment_is_read_back_without_its_hash() {
    let rule = Rule {
        purpose: "pod 169.254.9.2 [x]".into(),
        expressions: Vec::new(),
    };
    assert_eq!(purpose(&userdata(&rule, 7)), Some("pod 169.254.9.2 [x]"));
    assert_eq!(stamp(&userdata(&rule, 7)), Some(7));
    for foreign in [&b""[..], &[0], &[0, 9], &[1, 2, b'a', 0], &[0, 2, b'a', 0]] {
        assert_eq!(purpose(foreign), None);
    }
}
