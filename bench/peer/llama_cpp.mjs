// Measures llama.cpp, by way of node-llama-cpp, as generate_bench measures this project: a prompt,
// one token after the other of one text, and of several side by side. Prints one JSON object.
//
//   bash scripts/llama_cpp.sh --fetch
//   node bench/peer/llama_cpp.mjs FILE.gguf [--context 512] [--tokens 16] [--batch 16] [--threads 2]
//                                 [--rounds 3]
//
// FILE: what `export --to gguf --type BF16` writes of a model. The median of the rounds counts.
import os from "node:os";
import path from "node:path";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const options = {context: 512, tokens: 16, batch: 16, threads: 2, rounds: 3};
let file = "";
const words = process.argv.slice(2);
for (let i = 0; i < words.length; i++) {
  const name = words[i].replace(/^--/, "");
  if (words[i] === name) file = name;
  else if (name in options && Number(words[i + 1]) > 0) options[name] = Number(words[++i]);
  else throw new Error(`${words[i]}: expected one of --${Object.keys(options).join(", --")} and a number`);
}
if (!file) throw new Error("a GGUF file is needed");

const cache = process.env.TAPESTRY_LLAMA_CPP ?? path.join(os.homedir(), ".cache/tapestry/llama_cpp");
const entry = createRequire(cache + "/").resolve("node-llama-cpp").replace(/index\.cjs$/, "index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry));
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false,
                              maxThreads: options.threads, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: path.resolve(file)});

const median = numbers => numbers.sort((a, b) => a - b)[numbers.length >> 1];
const prompt = number => Array.from({length: options.context}, (_, i) => 300 + (i * 37 + number * 101) % 20000);

// Seconds until the last of the texts has its first token, and for each later token of all of them.
async function round(batch) {
  const context = await model.createContext({
    sequences: batch, contextSize: options.context + options.tokens + 8, threads: options.threads,
    batchSize: Math.max(512, batch),
  });
  let firsts = 0, promptSeconds = 0, second = 0;
  const start = performance.now();
  await Promise.all(Array.from({length: batch}, async (_, number) => {
    const sequence = context.getSequence();
    let count = 0;
    for await (const _token of sequence.evaluate(prompt(number), {temperature: 0, yieldEogToken: true})) {
      if (++count === 1 && ++firsts === batch) {
        promptSeconds = (performance.now() - start) / 1e3;
        second = performance.now();
      }
      if (count > options.tokens) break;
    }
  }));
  const stepSeconds = (performance.now() - second) / 1e3 / options.tokens;
  await context.dispose();
  return {promptSeconds, stepSeconds};
}

async function rounds(batch) {
  const all = [];
  for (let i = 0; i < options.rounds; i++) all.push(await round(batch));
  return {prompt: median(all.map(r => r.promptSeconds)), step: median(all.map(r => r.stepSeconds))};
}

const one = await rounds(1);
const several = await rounds(options.batch);
console.log(JSON.stringify({
  peer: "llama.cpp", threads: options.threads,
  prompt: {tokens_per_second: options.context / one.prompt},
  one_text: {tokens_per_second: 1 / one.step},
  texts: {count: options.batch, tokens_per_second: options.batch / several.step},
}));
process.exit(0);
