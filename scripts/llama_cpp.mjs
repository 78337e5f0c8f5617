// What scripts/llama_cpp.sh runs; it says how. Everything on one thread, with keys and values in
// float32, nothing built and nothing fetched.
import fs from "node:fs";
import path from "node:path";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const fail = text => {
  console.error(`llama_cpp.sh: ${text}`);
  process.exit(2);
};

const options = {tokens: "100"};
const words = process.argv.slice(2);
let file = "";
for (let i = 0; i < words.length; i++) {
  if (words[i] === "--lines") options.lines = true;
  else if (["--lora", "--prompt", "--tokens", "--compare", "--bound", "--forgive"].includes(words[i])) {
    if (i + 1 === words.length) fail(`${words[i]} needs a value`);
    options[words[i].slice(2)] = words[++i];
  } else if (words[i].startsWith("--")) fail(`unknown option ${words[i]}`);
  else if (file) fail(`one file is expected, got ${file} and ${words[i]}`);
  else file = words[i];
}
if (!file) fail("a GGUF file is needed");
if (!options.prompt === !options.compare) fail("one of --prompt and --compare is needed");
if (options.compare && !(Number(options.bound) > 0)) fail("--compare needs --bound, a number above 0");

const require = createRequire(process.env.LLAMA_CPP_CACHE + "/");
const entry = require.resolve("node-llama-cpp").replace(/index\.cjs$/, "index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry));
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false,
                              logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: path.resolve(file), useMmap: false});
const context = await model.createContext({
  threads: 1, flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
  ...(options.lora ? {lora: {adapters: [{filePath: path.resolve(options.lora), scale: 1}]}} : {}),
});
const sequence = context.getSequence();

// The next `count` tokens, the likeliest each time.
async function greedy(prompt, count) {
  await sequence.clearHistory();
  const out = [];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    out.push(token);
    if (out.length >= count) break;
  }
  return out;
}

async function continueText() {
  const prompt = model.tokenize(options.prompt, true);
  const bos = model.vocabularyType !== undefined && model.tokens.shouldPrependBosToken ? [model.tokens.bos] : [];
  const out = [];
  for (const token of await greedy([...bos, ...prompt], Number(options.tokens))) {
    if (model.isEogToken(token)) break;
    out.push(token);
  }
  console.log(model.detokenize([...prompt, ...out]));
  return true;
}

const jsonLines = name => fs.readFileSync(name, "utf8").trim().split("\n").map(line => JSON.parse(line));

async function compareTexts() {
  const bound = Number(options.bound), forgive = Number(options.forgive ?? options.bound);
  const cases = jsonLines(path.join(options.compare, "prompts.jsonl"));
  const bytes = fs.readFileSync(path.join(options.compare, "probabilities.f32"));
  const all = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const perCase = all.length / cases.length;
  let worst = 0, equal = 0, forgiven = 0, parted = [];
  for (const [number, {prompt, continuation}] of cases.entries()) {
    const ours = all.subarray(number * perCase, (number + 1) * perCase);
    const vocabulary = perCase / continuation.length;
    const ask = {generateNext: {token: true, probabilities: true, options: {temperature: 0}}};
    const ids = [...prompt, ...continuation].slice(0, -1);
    await sequence.clearHistory();
    const output = await sequence.controlledEvaluate(ids.map((id, i) => i < prompt.length - 1 ? id : [id, ask]));
    for (let step = 0; step < continuation.length; step++) {
      for (const [token, p] of output[prompt.length - 1 + step].next.probabilities)
        worst = Math.max(worst, Math.abs(p - ours[step * vocabulary + token]));
    }
    const got = await greedy(prompt, continuation.length);
    const step = continuation.findIndex((id, i) => id !== got[i]);
    if (step < 0) {
      equal++;
      continue;
    }
    const row = Array.from(ours.subarray(step * vocabulary, (step + 1) * vocabulary)).sort((a, b) => b - a);
    if (row[0] - row[1] < forgive) forgiven++;
    else parted.push(`prompt ${number} parts at token ${step}, where our two likeliest are ${(row[0] - row[1]).toExponential(1)} apart`);
  }
  console.log(`probabilities: largest difference ${worst.toExponential(1)}, bound ${bound.toExponential(0)}`);
  console.log(`greedy: ${equal} of ${cases.length} texts equal, ${forgiven} part where two tokens are as likely`);
  for (const text of parted) console.log(`  ${text}`);
  return worst <= bound && parted.length === 0;
}

function compareLines() {
  let count = 0, other = 0;
  for (const {text, ids} of jsonLines(path.join(options.compare, "lines.jsonl"))) {
    const got = model.tokenize(text, true);
    count++;
    if (got.length !== ids.length || got.some((id, i) => id !== ids[i])) {
      if (other++ < 3) console.log(`  other ids: ${JSON.stringify(text)}\n    ours ${ids}\n    its  ${got}`);
    }
  }
  console.log(`tokenizer: ${other} of ${count} texts have other ids`);
  return other === 0;
}

let good = options.prompt ? await continueText() : await compareTexts();
if (options.lines) good = compareLines() && good;
process.exit(good ? 0 : 1);
