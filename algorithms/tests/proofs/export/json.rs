//! JSON read back by a parser of its own, and compared with what was written.

use std::collections::BTreeMap;

use consort_algorithms::export::{plan_json, schedule_json};
use consort_algorithms::passes::fuse;
use consort_algorithms::plan::{Action, CounterRole, Engine, Extent, Operand, Position, Region, Step};
use consort_algorithms::{Chunk, Collective, LowerOptions, Place, Plan, Rank, Schedule, Transfer, lower_all};

use super::schedules;
use crate::common::hand::{Hand, counter, flag, input, output, scratch, slot};

#[derive(Clone, PartialEq, Debug)]
enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    fn of(text: &str) -> Json {
        let mut reader = Reader { rest: text };
        let value = reader.value();
        reader.space();
        assert_eq!(reader.rest, "", "something follows");
        value
    }

    fn at(&self, key: &str) -> &Json {
        let Json::Object(fields) = self else { panic!("{self:?} has no {key}") };
        fields.get(key).unwrap_or_else(|| panic!("{self:?} has no {key}"))
    }

    fn get(&self, key: &str) -> Option<&Json> {
        if let Json::Object(fields) = self { fields.get(key) } else { None }
    }

    fn number(&self, key: &str) -> i64 {
        if let Json::Number(number) = self.at(key) { *number } else { panic!("{key} is no number") }
    }

    fn text(&self, key: &str) -> &str {
        if let Json::Text(text) = self.at(key) { text } else { panic!("{key} is no text") }
    }

    fn items(&self) -> &[Json] {
        if let Json::Array(items) = self { items } else { panic!("{self:?} is no array") }
    }

    /// The only field of an object.
    fn only(&self) -> (&str, i64) {
        let Json::Object(fields) = self else { panic!("{self:?} is no object") };
        assert_eq!(fields.len(), 1);
        let key = fields.keys().next().expect("one");
        (key, self.number(key))
    }

    fn set(&self, key: &str) -> bool {
        self.get(key) == Some(&Json::Bool(true))
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n']);
    }

    fn takes(&mut self, token: &str) -> bool {
        self.space();
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, token: &str) {
        assert!(self.takes(token), "expected {token} before {:.40}", self.rest);
    }

    fn value(&mut self) -> Json {
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
        {
            if self.takes(word) {
                return value;
            }
        }
        if self.takes("[") {
            return Json::Array(self.list("]", Reader::value));
        }
        if self.takes("{") {
            let fields = self.list("}", |reader| {
                let key = reader.string();
                reader.expect(":");
                (key, reader.value())
            });
            let (count, map) = (fields.len(), BTreeMap::from_iter(fields));
            assert_eq!(count, map.len(), "a key stands twice");
            return Json::Object(map);
        }
        if self.rest.starts_with('"') {
            return Json::Text(self.string());
        }
        let end = self.rest.find(|c: char| !"-0123456789".contains(c)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        Json::Number(digits.parse().unwrap_or_else(|_| panic!("no value before {rest:.40}")))
    }

    fn list<T>(&mut self, end: &str, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        let mut items = Vec::new();
        if self.takes(end) {
            return items;
        }
        loop {
            items.push(item(self));
            if self.takes(end) {
                return items;
            }
            self.expect(",");
        }
    }

    fn string(&mut self) -> String {
        self.expect("\"");
        let mut text = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next().expect("the text ends") {
                '"' => break,
                '\\' => match chars.next().expect("an escape") {
                    'u' => {
                        let digits: String = chars.by_ref().take(4).collect();
                        let code = u32::from_str_radix(&digits, 16).expect("four hex digits");
                        text.push(char::from_u32(code).expect("a character"));
                    }
                    c => text.push(c),
                },
                c => {
                    assert!(c >= ' ', "a bare control character");
                    text.push(c);
                }
            }
        }
        self.rest = chars.as_str();
        text
    }
}

fn place(json: &Json) -> (&str, i64) {
    json.only()
}

fn expected_place(place: Place) -> (&'static str, i64) {
    match place {
        Place::Input(chunk) => ("input", chunk.0.into()),
        Place::Output(chunk) => ("output", chunk.0.into()),
        Place::Scratch(chunk) => ("scratch", chunk.0.into()),
    }
}

fn same_transfer(json: &Json, transfer: &Transfer) -> bool {
    json.number("from") == i64::from(transfer.from.0)
        && json.number("to") == i64::from(transfer.to.0)
        && json.number("channel") == i64::from(transfer.channel.0)
        && place(json.at("source")) == expected_place(transfer.source)
        && place(json.at("target")) == expected_place(transfer.target)
        && Some(json.at("fold")).filter(|fold| **fold != Json::Null).map(place)
            == transfer.fold.map(expected_place)
        && json.set("own_first") == transfer.own_first
}

fn same_schedule(schedule: &Schedule) {
    let json = Json::of(&schedule_json(schedule));
    assert_eq!(json.text("name"), schedule.name);
    assert_eq!(json.text("collective"), schedule.collective.name());
    assert_eq!(json.number("ranks"), i64::from(schedule.ranks));
    assert_eq!(json.number("switches"), i64::from(schedule.name == "through a switch"));
    assert_eq!(json.number("parts"), i64::from(schedule.partition.parts));
    assert_eq!(json.number("channels"), i64::from(schedule.channels()));
    let rounds = json.at("rounds").items();
    assert_eq!(rounds.len(), schedule.rounds.len());
    for (round, expected) in rounds.iter().zip(&schedule.rounds) {
        assert_eq!(round.items().len(), expected.transfers.len());
        for (transfer, expected) in round.items().iter().zip(&expected.transfers) {
            assert!(same_transfer(transfer, expected), "{transfer:?} is not {expected:?}");
        }
    }
}

#[test]
fn a_schedule_is_read_back() {
    schedules().iter().for_each(same_schedule);
    let mut odd = schedules().remove(0);
    odd.name = "a \"name\" \\ with\nlines\u{1} & <marks>, ü".into();
    same_schedule(&odd);
}

fn same_operand(plan: &Plan, json: &Json, operand: &Operand, raw: bool) {
    let (key, number) = match operand.position {
        Position::Chunk(chunk) => ("chunk", chunk.0),
        Position::Slot(slot) => ("slot", slot),
        Position::Scratch(place) => ("scratch", place),
        Position::Table(entry) => ("table", entry),
    };
    assert_eq!(json.number(key), i64::from(number));
    assert_eq!(json.number("region"), i64::from(operand.region));
    assert_eq!(json.set("raw"), raw, "{}: {json:?}", plan.name);
}

fn same_step(plan: &Plan, json: &Json, step: &Step) {
    let action = format!("{:?}", step.action).to_lowercase();
    assert_eq!(json.text("action"), action);
    let counts = matches!(step.action, Action::Signal | Action::Wait);
    assert_eq!(json.get("counter").is_some(), counts || step.has(Step::COUNTED));
    if json.get("counter").is_some() {
        assert_eq!(json.number("counter"), i64::from(step.counter));
        assert_eq!(json.number("value"), i64::from(step.value));
    }
    for (flag, key) in [(Step::FINISH, "finish"), (Step::PACKET, "packet"), (Step::COUNTED, "counted")] {
        assert_eq!(json.set(key), step.has(flag));
    }
    assert_eq!(json.get("targets").is_some(), !counts);
    if counts {
        return;
    }
    let (targets, sources) = (json.at("targets").items(), json.at("sources").items());
    assert_eq!((targets.len(), sources.len()), (step.targets.into(), step.sources.into()));
    targets.iter().zip(plan.targets(step)).for_each(|(json, target)| same_operand(plan, json, target, false));
    for (index, (json, source)) in sources.iter().zip(plan.sources(step)).enumerate() {
        same_operand(plan, json, source, step.raw & (1 << index) != 0);
    }
    let chunk = step.extent.as_chunk().map(|chunk| ("chunk", i64::from(chunk.0)));
    let table = step.extent.as_table().map(|entry| ("table", i64::from(entry)));
    assert_eq!(
        Some(json.at("length")).filter(|length| **length != Json::Null).map(Json::only),
        chunk.or(table)
    );
}

fn same_plan(plan: &Plan) {
    let json = Json::of(&plan_json(plan));
    assert_eq!(json.text("name"), plan.name);
    assert_eq!(json.text("collective"), plan.collective.name());
    let header = ["ranks", "rank", "parts", "slots", "scratch"].map(|key| json.number(key));
    let expected = [plan.ranks, plan.rank.0, plan.partition.parts, plan.slots, plan.scratch];
    assert_eq!(header, expected.map(i64::from));
    assert_eq!(json.set("sliced"), plan.sliced);

    assert_eq!(json.at("regions").items().len(), plan.regions.len());
    for (json, used) in json.at("regions").items().iter().zip(&plan.regions) {
        let number = |key: &str| json.number(key);
        assert_eq!(number("slots_per_iteration"), i64::from(used.slots_per_iteration));
        let same = match (json.text("kind"), used.region) {
            ("input", Region::Input(rank)) | ("output", Region::Output(rank)) => {
                number("rank") == i64::from(rank.0)
            }
            ("scratch", Region::Scratch) => true,
            ("mailbox", Region::Mailbox { owner, writer, channel }) => {
                let expected = [owner.0, writer.0, channel.0.into()].map(i64::from);
                ["owner", "writer", "channel"].map(number) == expected
            }
            ("group", Region::Group { group, output }) => {
                number("group") == i64::from(group) && json.set("output") == output
            }
            _ => false,
        };
        assert!(same, "{json:?} is not {used:?}");
    }
    assert_eq!(json.at("counters").items().len(), plan.counters.len());
    for (json, used) in json.at("counters").items().iter().zip(&plan.counters) {
        let id = used.id;
        let numbers = ["owner", "writer", "channel", "per_iteration"].map(|key| json.number(key));
        assert_eq!(
            numbers,
            [id.owner.0, id.writer.0, id.channel.0.into(), used.per_iteration].map(i64::from)
        );
        match id.role {
            CounterRole::Ready => assert_eq!(json.text("role"), "ready"),
            CounterRole::Credit => assert_eq!(json.text("role"), "credit"),
            CounterRole::Flag(flag) => assert_eq!(json.at("role").only(), ("flag", flag.into())),
        }
    }
    let groups: Vec<Vec<Json>> =
        json.at("groups").items().iter().map(|group| group.items().to_vec()).collect();
    let number = |rank: &Rank| Json::Number(rank.0.into());
    let expected: Vec<Vec<Json>> =
        plan.groups.iter().map(|group| group.iter().map(number).collect()).collect();
    assert_eq!(groups, expected);

    assert_eq!(json.at("lanes").items().len(), plan.lanes.len());
    for (json, lane) in json.at("lanes").items().iter().zip(&plan.lanes) {
        let engine = match lane.engine {
            Engine::Processor => "processor",
            Engine::CopyEngine => "copy_engine",
            Engine::Network => "network",
        };
        assert_eq!(json.text("engine"), engine);
        let steps = json.at("steps").items();
        assert_eq!(steps.len(), plan.lane(lane).len());
        steps.iter().zip(plan.lane(lane)).for_each(|(json, step)| same_step(plan, json, step));
    }
}

#[test]
fn a_lowered_plan_is_read_back() {
    let mut read = 0;
    for schedule in schedules().iter().filter(|schedule| schedule.ranks <= 8) {
        // A schedule with a switch cannot be lowered to ranks alone.
        for plan in lower_all(schedule, &LowerOptions { slots: 4 }).unwrap_or_default() {
            same_plan(&plan);
            same_plan(&fuse(&plan, &|_| true));
            read += 1;
        }
    }
    assert!(read > 100, "only {read} plans");
}

/// Groups, tables, flags, packets, counted puts, every engine: parts that no lowering makes.
#[test]
fn a_plan_by_hand_is_read_back() {
    let mut hand = Hand::new("by \"hand\"", Collective::AllReduce, 1, 4, 2, 3);
    hand.plan.groups = vec![vec![Rank(0), Rank(1)], vec![Rank(3), Rank(2), Rank(1)]];
    let group = |group, output| (Region::Group { group, output }, Position::Chunk(Chunk(1)));
    let (length, entry) = (Extent::chunk(Chunk(1)), Extent::table(7));
    hand.lane(Engine::Processor);
    hand.wait(flag(1, 0, 3), -2);
    hand.act(Action::Reduce, length, &[group(1, true)], &[group(0, false), input(1, 1)], 2, Step::FINISH);
    hand.act(Action::Copy, length, &[slot(0, 1, 2, 1)], &[output(1, 0)], 0, Step::PACKET);
    hand.lane(Engine::CopyEngine);
    hand.copy(entry, scratch(4), (Region::Input(Rank(2)), Position::Table(5)));
    hand.signal(counter(2, 1, 0, CounterRole::Credit));
    hand.lane(Engine::Network);
    hand.counted_put(entry, output(0, 1), input(1, 0), counter(0, 1, 1, CounterRole::Ready));
    hand.act(Action::Get, Extent::NONE, &[output(1, 0)], &[input(0, 0)], 0, 0);
    same_plan(&hand.plan);
}
