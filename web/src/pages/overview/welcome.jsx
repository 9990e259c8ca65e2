// What stands there before the first job.
import { Section } from "../../ui/section.jsx";

const spec = `{
  "name": "first",
  "model": {
    "init": "random",
    "config": {"model_type": "qwen3", "vocab_size": 259, "hidden_size": 64,
               "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": true}
  },
  "objective": {"type": "block_diffusion", "block_size": 8},
  "data": {"path": "text.jsonl", "sequence_length": 256},
  "parallel": {"mode": "csbp", "degree": 2},
  "optimizer": {"lr": 3e-3},
  "steps": 300
}`;

export function Welcome() {
  return (
    <Section title="There is no job yet">
      <div class="welcome">
        <p>
          A job is one JSON object, such as this <code>job.json</code>. Its data is a <code>.jsonl</code> file
          with a <code>text</code> field, a <code>.txt</code> file, or a directory of them.
        </p>
        <pre tabIndex={0} aria-label="job.json">
          {spec}
        </pre>
        <p>Look at what it would take, then submit it:</p>
        <pre tabIndex={0} aria-label="Commands">
          {`curl -sS --json @job.json '${location.origin}/v1/jobs?dry_run=true'\ncurl -sS --json @job.json ${location.origin}/v1/jobs`}
        </pre>
      </div>
    </Section>
  );
}
