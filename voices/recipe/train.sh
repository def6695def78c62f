#!/bin/sh
# The whole training in one go: the teacher speaks on the CPU's cores while the codec's decoder and the Talker train side by side.
#   train.sh SENTENCES TOKENIZER WORK [SECONDS]
# Run from voices/, with the repository on PYTHONPATH. CODEC_GPU and TALKER_GPU may be the same; WORKERS is for the teacher. RESUME names the
# WORK/run of an earlier training, from which decoder and Talker go on. CODEC_ARGS and TALKER_ARGS are more arguments for the two.
set -eu
sentences=$1 tokenizer=$2 work=$3 seconds=${4:-740}
run=$work/run
mkdir -p "$run"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
job() { # NAME COMMAND …: run it, its output in NAME.log, and say there how it ended
    name=$1
    shift
    status=0
    "$@" >"$run/$name.log" 2>&1 || status=$?
    echo "$(date +%T) $name ended with status $status" | tee -a "$run/$name.log"
    return $status
}
codec="--adversarial-from $((seconds / 10))" talker=""
if [ -n "${RESUME:-}" ]; then
    codec="--resume $RESUME --adversarial-from 0 --learning-rate 3e-4" talker="--resume $RESUME/talker.safetensors --learning-rate 1e-3"
fi
job teacher python3 -m recipe.teacher --sentences "$sentences" --shards "$work/shards" --workers "${WORKERS:-12}" --seconds "$seconds" &
CUDA_VISIBLE_DEVICES=${CODEC_GPU:-0} job codec python3 -m recipe.train_codec --shards "$work/shards" --out "$run" --seconds "$seconds" \
    $codec ${CODEC_ARGS:-} &
train_codec=$!
CUDA_VISIBLE_DEVICES=${TALKER_GPU:-0} job talker python3 -m recipe.train_talker --shards "$work/shards" --tokenizer "$tokenizer" \
    --out "$run" --seconds "$seconds" $talker ${TALKER_ARGS:-} &
train_talker=$!
status=0
wait $train_codec || status=$?
wait $train_talker || status=$?
exit $status
