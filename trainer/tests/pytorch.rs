//! The same model in PyTorch: ten steps, by a fixture that `scripts/make-fixture.py` wrote.

use consort_trainer::mesh::Degrees;
use consort_trainer::model::Shape;
use consort_trainer::number::Number;
use consort_trainer::optimizer::{AdamW, Schedule};
use consort_trainer::parallel::pipeline::Order;
use consort_trainer::parallel::zero::Zero;
use consort_trainer::parameters::{Layout, ParameterId, Values};
use consort_trainer::products::Products;
use consort_trainer::ranks::Overlap;
use consort_trainer::text::Text;
use consort_trainer::train::{Run, Trainer};
use serde_json::Value;

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/pytorch.json")).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn run(fixture: &Value, tied: bool) -> Run {
    let length = |name: &str| fixture["shape"][name].as_u64().expect("a length") as usize;
    let count = |name: &str| fixture["run"][name].as_u64().expect("a count") as usize;
    let real = |name: &str| number(&fixture["run"][name]);
    let shape = Shape {
        vocabulary: length("vocabulary"),
        width: length("width"),
        layers: length("layers"),
        heads: length("heads"),
        kv_heads: length("kv_heads"),
        hidden: length("hidden"),
        sequence: length("sequence"),
        experts: None,
        tied,
        rope_base: real("rope_base"),
        norm_epsilon: real("norm_epsilon"),
    };
    let (beta1, beta2) = (real("beta1"), real("beta2"));
    Run {
        shape,
        products: Products::Exact,
        degrees: Degrees::default(),
        zero: Zero::Nothing,
        micro_batches: 1,
        order: Order::default(),
        batch: count("batch"),
        bucket_bytes: 4 << 10,
        overlap: Overlap::default(),
        balance: 0.0,
        adamw: AdamW { beta1, beta2, epsilon: real("epsilon"), weight_decay: real("weight_decay") },
        schedule: Schedule {
            rate: real("rate"),
            least: real("least"),
            warmup: count("warmup"),
            steps: count("steps"),
        },
        clip: real("clip"),
        seed: count("seed") as u64,
    }
}

fn norm<T: Number>(values: &Values<T>, layout: &Layout, id: ParameterId) -> f64 {
    values.of(layout, id).iter().map(|value| value.wide() * value.wide()).sum::<f64>().sqrt()
}

/// What PyTorch found, within a relative error.
fn compare<T: Number>(precision: &str, tied: bool, tolerance: f64) {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().expect("cases");
    let case =
        cases.iter().find(|case| case["tied"] == tied && case["precision"] == precision).expect("the case");
    let run = run(&fixture, tied);
    let text =
        Text::new(fixture["text"].as_str().expect("a text").as_bytes(), run.shape.sequence).expect("a text");
    let mut trainer = Trainer::<T>::new(run, &text, None).expect("a trainer");
    let layout = trainer.model().layout().clone();
    let factor = T::of(number(&fixture["run"]["matrix_factor"]));
    for (id, parameter) in layout.parameters().filter(|(_, parameter)| parameter.decays()) {
        let values = trainer.all_mut().expect("all weights").0.of_mut(&layout, id);
        values.iter_mut().for_each(|value| *value *= factor);
        assert!(case["last_weights"].get(&parameter.name).is_some(), "PyTorch has no {}", parameter.name);
    }
    let close = |what: &str, found: f64, expected: &Value| {
        let error = (found / number(expected) - 1.0).abs();
        assert!(error <= tolerance, "{precision}, tied {tied}: {what} is {found}, in PyTorch {expected}");
    };
    for number in 0..run.schedule.steps {
        let step = trainer.step().expect("a step");
        close(&format!("loss {number}"), step.loss, &case["losses"][number]);
        close(&format!("norm {number}"), step.norm, &case["norms"][number]);
        for (id, parameter) in layout.parameters().filter(|_| number == 0) {
            let name = &parameter.name;
            close(
                &format!("gradient {name}"),
                norm(trainer.all_mut().expect("all gradients").1, &layout, id),
                &case["first_gradients"][name],
            );
        }
    }
    let weights = trainer.weights().expect("weights");
    for (id, parameter) in layout.parameters() {
        close(&parameter.name, norm(&weights, &layout, id), &case["last_weights"][&parameter.name]);
    }
}

#[test]
fn ten_steps_in_f64_are_those_of_pytorch() {
    compare::<f64>("f64", false, 1e-9);
    compare::<f64>("f64", true, 1e-9);
}

#[test]
fn ten_steps_in_f32_are_those_of_pytorch() {
    compare::<f32>("f32", false, 1e-4);
    compare::<f32>("f32", true, 1e-4);
}
