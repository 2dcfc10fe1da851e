{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* A StatefulSet's name becomes a label of its pods, with a number and a hash after it. */}}
{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "headrace.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "headrace.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "headrace.configMap" -}}
{{- default (include "headrace.fullname" .) .Values.existingConfigMap }}
{{- end }}

{{/* headrace.yaml: what is given, and metrics where Prometheus asks for them. */}}
{{- define "headrace.config" -}}
{{- range list "kafka" "channels" }}
{{- if not (get $.Values.config .) }}
{{- fail (printf "config.%s is missing: config is headrace.yaml, as in deploy/helm/example.yaml; or say existingConfigMap" .) }}
{{- end }}
{{- end }}
{{- $metrics := dict "host" "0.0.0.0" "port" .Values.metrics.port }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) (dict "metrics" $metrics)) }}
{{- end }}

{{/* Whole seconds of shutdown_timeout, rounded up. */}}
{{- define "headrace.shutdownSeconds" -}}
{{- if .Values.shutdownSeconds }}
{{- .Values.shutdownSeconds }}
{{- else }}
{{- $given := default "30s" .Values.config.shutdown_timeout | toString }}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 }}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)? ?(ms|s|m|h|d)$" $given) }}
{{- fail (printf "config.shutdown_timeout %q is not a duration such as 30s or 2m" $given) }}
{{- end }}
{{- $unit := regexFind "[a-z]+$" $given }}
{{- mulf (float64 (regexFind "^[0-9.]+" $given)) (get $units $unit) | ceil | int }}
{{- end }}
{{- end }}
