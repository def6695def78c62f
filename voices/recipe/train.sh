#!/bin/sh
# The whole training in one go: the teacher speaks on the CPU's cores while the codec trains, then the Talker beside the codec's decoder.
#   train.sh SENTENCES TOKENIZER WORK [SECONDS]
# Run from voices/, with the repository on PYTHONPATH. CODEC_GPU and TALKER_GPU may be the same; WORKERS is for the teacher. RESUME names the
# WORK/run of an earlier training: its encoder is kept, decoder and Talker go on from it.
set -eu
sentences=$1 tokenizer=$2 work=$3 seconds=${4:-440}
run=$work/run
mkdir -p "$run"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
if [ -z "${TEACHER_RUNS:-}" ]; then
    python3 -m recipe.teacher --sentences "$sentences" --shards "$work/shards" --workers "${WORKERS:-12}" --seconds "$seconds" &
fi
if [ -n "${RESUME:-}" ]; then
    cp "$RESUME/encoder.safetensors" "$run/"
    codec="--resume $RESUME --joint-seconds 0 --adversarial-from 0"
    talker="--resume $RESUME/talker.safetensors --learning-rate 1e-3"
else
    codec="--joint-seconds $((seconds / 3)) --adversarial-from $((seconds / 10))" talker=""
fi
CUDA_VISIBLE_DEVICES=${CODEC_GPU:-0} python3 -m recipe.train_codec --shards "$work/shards" --out "$run" --seconds "$seconds" $codec >"$run/codec.log" 2>&1 &
train_codec=$!
CUDA_VISIBLE_DEVICES=${TALKER_GPU:-0} python3 -m recipe.train_talker --shards "$work/shards" --codec "$run" --tokenizer "$tokenizer" --out "$run" \
    --seconds "$seconds" $talker >"$run/talker.log" 2>&1 &
train_talker=$!
status=0
wait $train_codec || status=$?
wait $train_talker || status=$?
exit $status
